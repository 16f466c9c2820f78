-- The next moment at which a run is due, and queues with queued runs.

local programs, skip, queues, with_queues = unpack(arguments(), 1, 4)
local first
timers(programs, skip, queues, '+inf', function(_, _, _, at)
    if not first or tonumber(at) < tonumber(first) then
        first = at
    end
    return false
end)
return { commits(), first or false, with_queues and waiting(queues) or {} }
