-- Replace a whole journal, if its next number is as expected.

local run_id, expected, next_seq, at, size, entries, blobs, token = unpack(arguments())
if call('EXISTS', P .. 'void:' .. token) == 1 then
    return { -1 }
end
local head, journal = P .. 'head:' .. run_id, P .. 'journal:' .. run_id
local found = tonumber(call('HGET', head, 'n') or 0)
if found ~= expected or found == 0 then
    return { commits(), { 2, found } }
end
call('HSET', head, 'n', next_seq, 't', at, 's', size)
call('DEL', journal)
for _, entry in ipairs(entries) do
    call('RPUSH', journal, ARGV[entry])
end
local kept = set_of(blobs)
for _, blob in ipairs(call('SMEMBERS', P .. 'refers:' .. run_id)) do
    if not kept[blob] then
        unrefer(run_id, blob)
    end
end
refer(run_id, blobs)
return { notify(), 1 }
