-- Remove runs that have ended, with all that belongs to them; the answer names those that are gone.

local function children_of(root)
    local found = {}
    for _, status in ipairs({ 'queued', 'running', 'waiting', 'paused', 'parked', 'completed', 'failed', 'cancelled', 'bailed' }) do
        for _, run_id in ipairs(call('ZRANGEBYLEX', P .. 'by:' .. status, '[' .. root .. '/', '(' .. root .. '0')) do
            found[#found + 1] = run_id
        end
    end
    return found
end

local function drop_row(run_id, x)
    reindex(run_id, x, nil)
    call('DEL', P .. 'row:' .. run_id)
    local ids = P .. (x[ROOT] == '' and 'ids' or 'children')
    if call('HGET', ids, x[ID]) == run_id then
        call('HDEL', ids, x[ID])
    end
    if x[QUEUE] ~= '' and call('HGET', P .. 'served:' .. x[QUEUE], x[KEY]) == x[BEGAN] then
        call('HDEL', P .. 'served:' .. x[QUEUE], x[KEY])
    end
end

local wanted, gone = {}, {}

local function remove(run_id)
    wanted[run_id] = nil
    local x = index_of(run_id)
    if not x or x[ROOT] ~= '' or not x[FINISHED] then
        return
    end
    local before = call('HGET', P .. 'before', run_id)
    if before and wanted[before] then
        remove(before)
    end
    if before and call('EXISTS', P .. 'row:' .. before) == 1 then
        return -- an earlier run of that id would become the latest
    end
    for _, child in ipairs(children_of(run_id)) do
        local found = index_of(child)
        if found then
            drop_row(child, found)
        end
    end
    drop_row(run_id, x)
    for _, blob in ipairs(call('SMEMBERS', P .. 'refers:' .. run_id)) do
        unrefer(run_id, blob)
    end
    call('DEL', P .. 'journal:' .. run_id, P .. 'head:' .. run_id, P .. 'refers:' .. run_id)
    call('ZREM', P .. 'journals', run_id)
    call('HDEL', P .. 'before', run_id)
    gone[#gone + 1] = run_id
end

local run_ids = arguments()
wanted = set_of(run_ids)
for _, run_id in ipairs(run_ids) do
    if wanted[run_id] then
        remove(run_id)
    end
end
return { #gone > 0 and notify() or commits(), gone }
