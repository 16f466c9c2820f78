-- Check whether there is a store under the prefix, and with `create` make one: every kind of command that the scripts
-- use is tried once, so that a missing right shows now and not in the middle of a run.

local create, format = unpack(arguments())
local found = call('HMGET', META, 'format', 'commits')
if create then
    local probe = P .. 'probe'
    call('DEL', probe)
    call('RPUSH', probe, 1)
    call('LRANGE', probe, 0, -1)
    call('LINDEX', probe, 0)
    call('LLEN', probe)
    call('DEL', probe)
    call('ZADD', probe, 0, 1)
    call('ZRANGEBYLEX', probe, '-', '+')
    call('ZREVRANGEBYSCORE', probe, '+inf', '-inf')
    call('ZREM', probe, 1)
    call('SADD', probe, 1)
    call('SMEMBERS', probe)
    call('SREM', probe, 1)
    call('SET', probe, 1, 'EX', 1)
    call('GETRANGE', probe, 0, 1)
    call('EXISTS', probe)
    call('DEL', probe)
    call('TIME')
    if not found[1] then
        call('HSET', META, 'format', format)
        found[1] = format
    end
    call('HINCRBY', META, 'commits', 0)
    call('HDEL', META, 'probe')
end
return { tonumber(found[1] or (found[2] and format) or 0), tonumber(found[2] or 0) }
