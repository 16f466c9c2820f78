-- Hold on to leases: the answer also names those that are not their owner's. Heartbeats of orchestrators are heard by all:
-- who is not heard in time may be dead.

local lost = {}
for _, wish in ipairs(arguments()) do
    local key, owner, expires = unpack(wish)
    local held = lease_of(key)
    if held and held[3] == owner then
        put_lease(key, held[1], expires, owner)
        if sub(key, 1, 13) == 'orchestrator:' then
            redis.pcall('PUBLISH', CHANNEL .. 'beat', expires .. ' ' .. key)
        end
    else
        lost[#lost + 1] = key
    end
end
return { commits(), lost }
