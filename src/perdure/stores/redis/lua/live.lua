-- The leases in force whose keys begin with a text.

local prefix, now = unpack(arguments())
local answers, offset, page = {}, 0, nil
repeat
    page = call('ZRANGEBYLEX', P .. 'held', '[' .. prefix, '+', 'LIMIT', offset, 100)
    for _, key in ipairs(page) do
        local lease = sub(key, 1, #prefix) == prefix and lease_of(key)
        if lease and lease[3] ~= '' and tonumber(lease[2]) > tonumber(now) then
            answers[#answers + 1] = { key, lease[3], lease[1], lease[2] }
        end
    end
    offset = offset + 100
until #page < 100 or sub(page[#page], 1, #prefix) ~= prefix
return answers
