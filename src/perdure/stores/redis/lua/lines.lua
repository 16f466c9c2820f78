-- The keys of one priority that may have a turn, those served least recently first, with the runs that may begin.

local queue, priority, per_key, now, programs, left, keys = unpack(arguments(), 1, 7)
local known, names = set_of(programs), names_of(programs)
local place = queue .. SEP .. priority

local function ready(key, limit)
    local found, offset, size, page = {}, 0, math.max(limit, 8), nil
    repeat
        page = call('ZRANGEBYSCORE', P .. 'line:' .. place .. SEP .. key, '-inf', now, 'LIMIT', offset, size)
        for _, member in ipairs(page) do
            local run_id, program = split(member)
            if #found < limit and names[program] and takes(known, program, run_id) then
                found[#found + 1] = run_id
            end
        end
        offset = offset + size
    until #page < size or #found >= limit
    return found
end

local found, offset, page = {}, 0, nil
repeat
    page = call('ZRANGE', P .. 'lines:' .. place, offset, offset + 99, 'WITHSCORES')
    for i = 1, #page, 2 do
        local key = page[i]
        local running = per_key and tonumber(call('HGET', P .. 'under:' .. queue, 'k' .. key) or 0) or 0
        if #found < left + keys and not (per_key and running >= per_key) then
            local runs = ready(key, 1)
            if runs[1] then
                found[#found + 1] = { key, page[i + 1], running, runs }
            end
        end
    end
    offset = offset + 100
until #page < 200 or #found >= left + keys
-- Keys that had a turn at a higher priority come last now; without enough others, each may have several turns.
if #found - keys < left then
    for _, line in ipairs(found) do
        line[4] = ready(line[1], left)
    end
end
return found
