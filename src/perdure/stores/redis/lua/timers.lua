-- Timers, for the scripts that find what is due and what is next.

-- Calls `visit` with each timer that concerns the caller, earliest first for each program and owner, until it says stop.
local function timers(programs, skip, queues, until_, visit)
    local known, names, left_out = set_of(programs), names_of(programs), set_of(skip)
    local wanted = queues and set_of(queues)
    for _, place in ipairs(call('SMEMBERS', P .. 'wakes')) do
        local program, owner = split(place)
        if names[program] and not left_out[owner] then
            local offset, size, page, going = 0, 32, nil, true
            repeat
                page = call(
                    'ZRANGEBYSCORE', P .. 'wake:' .. place, '-inf', until_, 'WITHSCORES', 'LIMIT', offset, size
                )
                for i = 1, #page, 2 do
                    local run_id, rest = split(page[i])
                    local queue, waiting = split(rest)
                    if going and (not wanted or wanted[queue]) and takes(known, program, run_id) then
                        going = visit(run_id, program, owner, page[i + 1], waiting, place, page[i])
                    end
                end
                offset = offset + size
            until #page < 2 * size or not going
        end
    end
end

-- The queues that have queued runs, and when the first of each may begin.
local function waiting(names)
    local wanted = names and set_of(names)
    local answers = {}
    for _, queue in ipairs(call('SMEMBERS', P .. 'queued')) do
        if not wanted or wanted[queue] then
            local first = call('ZRANGE', P .. 'ready:' .. queue, 0, 0, 'WITHSCORES')
            answers[#answers + 1] = { queue, first[2] }
        end
    end
    return answers
end
