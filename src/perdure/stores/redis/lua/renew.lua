-- Hold on to leases: the answer also names those that are not their owner's. No news to anybody.

local lost = {}
for _, wish in ipairs(arguments()) do
    local key, owner, expires = unpack(wish)
    local held = lease_of(key)
    if held and held[3] == owner then
        put_lease(key, held[1], expires, owner)
    else
        lost[#lost + 1] = key
    end
end
return { commits(), lost }
