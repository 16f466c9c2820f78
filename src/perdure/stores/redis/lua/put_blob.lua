-- Keep bytes under their hash, and note when; putting them again makes them young again.

local id = arguments()
local key = P .. 'blob:' .. id
local now = call('TIME')
local at = now[1] .. '.' .. string.format('%06d', tonumber(now[2]))
call('HSET', key, 'd', ARGV[4], 't', at)
if tonumber(call('HGET', key, 'n') or 0) <= 0 then
    call('ZADD', P .. 'loose', at, id)
end
return 1
