-- Leases: `leases` has epoch, expiry and owner of each key, `lease_ends` their expiries, `held` the keys that have an owner.

local function lease_of(key)
    local text = call('HGET', P .. 'leases', key)
    if not text then
        return nil
    end
    local epoch, expires, owner = string.match(text, '^(%d+) (%S+) (.*)$')
    return { tonumber(epoch), expires, owner }
end

local function put_lease(key, epoch, expires, owner)
    call('HSET', P .. 'leases', key, string.format('%d', epoch) .. ' ' .. expires .. ' ' .. owner)
    call('ZADD', P .. 'lease_ends', expires, key)
end

-- Released: without an owner, not deleted, since the next holder's epoch must be higher.
local function give_back(key, lease)
    put_lease(key, lease[1], lease[2], '')
    call('ZREM', P .. 'held', key)
    call('SREM', P .. 'holds:' .. lease[3], key)
    redis.pcall('PUBLISH', CHANNEL .. 'ended', key)
end
