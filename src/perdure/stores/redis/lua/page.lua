-- The next runs of some sets in the order of their ids, with their rows and heads; from `after` on, or backwards.

local keys, after, limit, backwards = unpack(arguments(), 1, 4)
local found = {}
for _, key in ipairs(keys) do
    local ids
    if backwards then
        ids = call('ZREVRANGEBYLEX', P .. key, after and '(' .. after or '+', '-', 'LIMIT', 0, limit)
    else
        ids = call('ZRANGEBYLEX', P .. key, after and '(' .. after or '-', '+', 'LIMIT', 0, limit)
    end
    for _, run_id in ipairs(ids) do
        found[#found + 1] = run_id
    end
end
if backwards then
    table.sort(found, function(a, b) return a > b end)
else
    table.sort(found)
end
local answers = {}
for i = 1, math.min(limit, #found) do
    local run_id = found[i]
    local x = index_of(run_id)
    local root = x and x[ROOT] ~= '' and x[ROOT] or run_id
    answers[i] = { run_id, call('GET', P .. 'row:' .. run_id), call('HMGET', P .. 'head:' .. root, 'n', 't', 's') }
end
return answers
