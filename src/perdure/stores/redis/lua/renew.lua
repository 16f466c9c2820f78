-- Renew leases; also returns the keys of those that another owner holds. The heartbeats of orchestrators notify all
-- processes: an orchestrator whose heartbeat is late may be dead.

local lost = {}
for _, renewal in ipairs(arguments()) do
    local key, owner, expires = unpack(renewal)
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
