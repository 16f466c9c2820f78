-- The runs of some owners, by their ids: for each owner and program one page, of which the caller takes the first.

local owners, status, programs, limit, queues = unpack(arguments(), 1, 5)
local known, wanted = set_of(programs), queues and set_of(queues)
local found = {}
for program in pairs(names_of(programs)) do
    for _, owner in ipairs(owners) do
        local key = P .. 'own:' .. program .. SEP .. status .. SEP .. owner
        local offset, taken, page = 0, 0, nil
        repeat
            page = call('ZRANGE', key, offset, offset + limit - 1)
            for _, member in ipairs(page) do
                local run_id, queue = split(member)
                if taken < limit and (not wanted or wanted[queue]) and takes(known, program, run_id) then
                    found[#found + 1] = run_id
                    taken = taken + 1
                end
            end
            offset = offset + limit
        until #page < limit or taken >= limit
    end
end
return found
