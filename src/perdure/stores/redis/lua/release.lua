-- Release a lease; otherwise return who holds it.

local key, owner = unpack(arguments())
local held = lease_of(key)
if not held or owner == '' or held[3] ~= owner then
    return { commits(), 0, held and held[3] or '' }
end
give_back(key, held)
return { notify(), 1 }
