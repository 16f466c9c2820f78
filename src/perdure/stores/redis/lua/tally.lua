-- The program and the end of the next runs of a set, the newest first, and the last of these runs if there may be more.

local key, before, limit = unpack(arguments(), 1, 3)
local found = call('ZREVRANGEBYLEX', P .. key, before and '(' .. before or '+', '-', 'LIMIT', 0, limit)
local answers = {}
for _, run_id in ipairs(found) do
    local x = index_of(run_id)
    if x then
        answers[#answers + 1] = { x[PROGRAM], x[FINISHED] or '' }
    end
end
return { #found == limit and found[#found] or false, answers }
