-- The row under an id, and the head of its journal: the latest run of that id, or else a child.

local id = arguments()
local run_id = call('HGET', P .. 'ids', id) or call('HGET', P .. 'children', id)
if not run_id then
    return false
end
local row = call('GET', P .. 'row:' .. run_id)
local x = index_of(run_id)
local root = x and x[ROOT] ~= '' and x[ROOT] or run_id
return { run_id, row, call('HMGET', P .. 'head:' .. root, 'n', 't', 's') }
