-- Remove blobs that nothing refers to and that were last put long ago; returns how many, and their bytes.

local age, limit, dry_run = unpack(arguments())
local now = call('TIME')
local before = tonumber(now[1]) + tonumber(now[2]) / 1000000 - age
local blobs, bytes = 0, 0
for _, blob in ipairs(call('ZRANGEBYSCORE', P .. 'loose', '-inf', string.format('%.6f', before), 'LIMIT', 0, limit)) do
    blobs = blobs + 1
    bytes = bytes + call('HSTRLEN', P .. 'blob:' .. blob, 'd')
    if not dry_run then
        call('DEL', P .. 'blob:' .. blob)
        call('ZREM', P .. 'loose', blob)
    end
end
return { blobs, bytes }
