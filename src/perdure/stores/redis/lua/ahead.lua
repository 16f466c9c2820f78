-- The next moment at which a run is due, and queues with queued runs.

local programs, skip, queues = unpack(arguments(), 1, 3)
local first
timers(programs, skip, queues, '+inf', function(_, _, _, at)
    if not first or tonumber(at) < tonumber(first) then
        first = at
    end
    return false
end)
return { commits(), first or false, waiting(queues) }
