-- What is under way in a queue, what began within its window, what waits at which priorities, and when more may.

local queue, now, starts, after, before = unpack(arguments(), 1, 5)
local running = tonumber(call('HGET', P .. 'under:' .. queue, 'n') or 0)
local began, nth = 0, false
if starts then
    local key = P .. 'starts:' .. queue
    began = call('ZCOUNT', key, '(' .. after, '(' .. before)
    local found = call('ZREVRANGEBYSCORE', key, '(' .. before, '(' .. after, 'WITHSCORES', 'LIMIT', starts - 1, 1)
    nth = found[2] or false
end
local later = call('ZRANGEBYSCORE', P .. 'ready:' .. queue, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local priorities = call('ZREVRANGE', P .. 'priorities:' .. queue, 0, -1)
return { running, began, nth, later[2] or false, priorities }
