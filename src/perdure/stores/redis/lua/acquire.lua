-- Take a lease that is free, expired, or the owner's already.

local key, owner, expires, now, unused = unpack(arguments())
-- Sweep leases that were unused for long. The highest epoch among them is kept: the next holder of such a lease must
-- get a higher one.
local old = call('ZRANGEBYSCORE', P .. 'lease_ends', '-inf', unused, 'LIMIT', 0, 100)
for _, one in ipairs(old) do
    local lease = lease_of(one)
    if lease then
        if lease[1] > tonumber(call('HGET', META, 'floor') or 0) then
            call('HSET', META, 'floor', lease[1])
        end
        call('SREM', P .. 'holds:' .. lease[3], one)
    end
    call('HDEL', P .. 'leases', one)
    call('ZREM', P .. 'lease_ends', one)
    call('ZREM', P .. 'held', one)
end
local held = lease_of(key)
local epoch
if not held then
    epoch = tonumber(call('HGET', META, 'floor') or 0) + 1
elseif held[3] == owner then
    epoch = held[1]
elseif held[3] ~= '' and tonumber(held[2]) > tonumber(now) then
    return { commits(), 0, held[3], held[2] }
else
    epoch = held[1] + 1
    call('SREM', P .. 'holds:' .. held[3], key)
end
put_lease(key, epoch, expires, owner)
call('ZADD', P .. 'held', 0, key)
call('SADD', P .. 'holds:' .. owner, key)
if sub(key, 1, 13) == 'orchestrator:' then
    -- Notify of the lease as a heartbeat does: an orchestrator may die before its first one.
    redis.pcall('PUBLISH', CHANNEL .. 'beat', expires .. ' ' .. key)
end
return { notify(), epoch }
