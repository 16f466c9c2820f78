-- Release every lease of an owner; returns how many there were.

local owner = arguments()
local given = 0
for _, key in ipairs(call('SMEMBERS', P .. 'holds:' .. owner)) do
    local held = lease_of(key)
    if held and held[3] == owner then
        give_back(key, held)
        given = given + 1
    end
end
call('DEL', P .. 'holds:' .. owner)
return { given > 0 and notify() or commits(), given }
