-- Runs whose deadline has passed, and the next deadline: of each program as many as are asked for.

local now, limit, programs, skip = unpack(arguments(), 1, 4)
local left_out = set_of(skip)
local found, stale, first = {}, {}, nil
for _, program in ipairs(programs) do
    local key = P .. 'deadlines:' .. program
    local offset, size, taken, page = 0, 32, 0, nil
    repeat
        page = call('ZRANGEBYSCORE', key, '-inf', now, 'WITHSCORES', 'LIMIT', offset, size)
        for i = 1, #page, 2 do
            local x = index_of(page[i])
            if not x or x[FINISHED] then
                stale[#stale + 1] = { key, page[i] } -- left by a row that was damaged or lost, or by older code
            elseif x[WAKE] and not left_out[x[OWNER] or ''] and taken < limit then
                found[#found + 1] = { page[i + 1], page[i] }
                taken = taken + 1
            end
        end
        offset = offset + size
    until #page < 2 * size or taken >= limit
    local after = call('ZRANGEBYSCORE', key, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if after[2] and (not first or tonumber(after[2]) < tonumber(first)) then
        first = after[2]
    end
end
for _, one in ipairs(stale) do
    call('ZREM', one[1], one[2])
end
return { found, first or false }
