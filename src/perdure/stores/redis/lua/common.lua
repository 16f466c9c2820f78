-- What all scripts share. KEYS[1] is the hash of the store itself; ARGV[1] is the prefix of all keys, ARGV[2] the
-- prefix of channels, and ARGV[3] the arguments of the script, as one value in MessagePack. Texts and bytes follow, and
-- the arguments have their numbers.

local P, CHANNEL = ARGV[1], ARGV[2]
local META = KEYS[1]
local call, sub, find = redis.call, string.sub, string.find
local SEP = '\0'

-- STATUS, PROGRAM and so on are the places of what a row begins with: see Index in scripts.py.

local function arguments()
    return cmsgpack.unpack(ARGV[3])
end

local function set_of(names)
    local found = {}
    for _, name in ipairs(names) do
        found[name] = true
    end
    return found
end

-- The text before the first separator, and what follows it.
local function split(text)
    local at = find(text, SEP, 1, true)
    return sub(text, 1, at - 1), sub(text, at + 1)
end

-- Count a commit, which `version` is made of, and notify the listeners.
local function notify()
    local commits = call('HINCRBY', META, 'commits', 1)
    -- Not `call`: without the right to publish the commit holds, and the other processes poll.
    redis.pcall('PUBLISH', CHANNEL .. 'commits', commits)
    return commits
end

local function commits()
    return tonumber(call('HGET', META, 'commits') or 0)
end

-- What a row begins with; nil when there is no row, or none that can be read.
local function index_of(run_id)
    local key = P .. 'row:' .. run_id
    local text = call('GETRANGE', key, 0, 767)
    local size = tonumber(sub(text, 1, 4), 16)
    if not size then
        return nil
    end
    if #text < 4 + size then
        text = call('GETRANGE', key, 0, 3 + size)
    end
    local read, found = pcall(cmsgpack.unpack, sub(text, 5, 4 + size))
    if read and type(found) == 'table' then
        return found
    end
    return nil
end

-- The names of programs that a caller asks for, without versions.
local function names_of(programs)
    local found = {}
    for _, program in ipairs(programs) do
        local at = find(program, ':', 1, true)
        found[at and sub(program, 1, at - 1) or program] = true
    end
    return found
end

-- Whether a caller asks for a run of this program: of any version, or of the version that it has.
local function takes(known, program, run_id)
    local x = not known[program] and index_of(run_id)
    return not x or not x[VERSION] or known[program .. ':' .. x[VERSION]]
end

-- Journals: entries in a list, each beginning with its number. The place of the entry that holds event `start`.
local function place_of(key, start)
    local low, high = 0, call('LLEN', key) - 1
    while low < high do
        local middle = math.floor((low + high + 1) / 2)
        local seq = tonumber(string.match(call('LINDEX', key, middle), '^%d+'))
        if not seq then
            return 0 -- damaged: the caller reads all of it, and reports that
        end
        if seq <= start then
            low = middle
        else
            high = middle - 1
        end
    end
    return low
end
