-- The queues that have queued runs; only those of the names, if there are any.

local names = unpack(arguments(), 1, 1)
return waiting(names)
