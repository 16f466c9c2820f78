-- Replace all rows of a journal, if its next number is as expected.

local run_id, expected, rows = unpack(arguments())
if tonumber(call('HGET', P .. 'head:' .. run_id, 'n') or 0) ~= expected then
    return { commits(), 0 }
end
local kept = {}
for _, row in ipairs(rows) do
    kept[row[1]] = true
end
for _, status in ipairs({ 'queued', 'running', 'waiting', 'paused', 'parked', 'completed', 'failed', 'cancelled', 'bailed' }) do
    -- A row that was damaged may have left its traces in more than one place.
    for _, child in ipairs(call('ZRANGEBYLEX', P .. 'by:' .. status, '[' .. run_id .. '/', '(' .. run_id .. '0')) do
        local x = index_of(child)
        if not kept[child] and x then
            reindex(child, x, nil)
            if call('HGET', P .. 'children', x[ID]) == child then
                call('HDEL', P .. 'children', x[ID])
            end
            call('DEL', P .. 'row:' .. child)
        elseif not x or x[STATUS] ~= status then
            call('ZREM', P .. 'by:' .. status, child)
        end
    end
    local x = index_of(run_id)
    if not x or x[STATUS] ~= status then
        call('ZREM', P .. 'by:' .. status, run_id)
    end
end
for _, row in ipairs(rows) do
    put_row(row)
    if row[2][ROOT] == '' then
        local latest = call('HGET', P .. 'ids', row[2][ID])
        local found = latest and index_of(latest)
        if not found or found[INCARNATION] <= row[2][INCARNATION] then
            call('HSET', P .. 'ids', row[2][ID], row[1])
        end
    end
end
return { notify(), 1 }
