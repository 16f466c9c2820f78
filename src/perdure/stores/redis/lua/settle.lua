-- What became of an append whose reply was lost: for each part, whether it is in its journal. If it has not run by now,
-- it never will.

local token, places = unpack(arguments())
call('SET', P .. 'void:' .. token, 1, 'EX', 86400)
local answers = { commits() }
for i, place in ipairs(places) do
    local key = P .. 'journal:' .. place[1]
    local found = call('LINDEX', key, place_of(key, place[2]))
    answers[i + 1] = (found == ARGV[place[3]]) and 1 or 0
end
return answers
