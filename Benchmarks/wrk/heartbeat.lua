-- Heartbeats of many devices for wrk (https://github.com/wg/wrk, SCRIPTING).
--
--   wrk -t1 -c64 -d5s -s Benchmarks/wrk/heartbeat.lua http://127.0.0.1:8080 -- DEVICES
--
-- DEVICES is a file with one device id a line. Every request is made before the run begins, so that
-- the load costs as little as possible; each device's turn comes round in order. At the end one line
-- of JSON is printed after the word "heartline-bench".

local requests = {}
local next_request = 0

local started = 0
function setup(thread)
    -- Each thread begins elsewhere in the list.
    thread:set("thread_index", started)
    started = started + 1
end

function init(arguments)
    local path = arguments[1]
    if not path then error("heartbeat.lua: name a file of device ids after --") end
    local file = assert(io.open(path, "r"))
    local headers = { ["Content-Type"] = "application/json" }
    -- Fresh for the length of a run; whole seconds, as agents send it.
    local handshake = os.date("!%Y-%m-%dT%H:%M:%SZ", os.time() - 20)
    for device in file:lines() do
        if #device == 36 then
            local body = '{"device_id":"' .. device .. '","status":"connected","tunnel_up":true,'
                .. '"last_handshake":"' .. handshake .. '"}'
            requests[#requests + 1] = wrk.format("POST", "/api/v1/heartbeat", headers, body)
        end
    end
    file:close()
    if #requests == 0 then error("heartbeat.lua: no device ids in " .. path) end
    next_request = (thread_index or 0) * 7919 % #requests
end

function request()
    next_request = next_request % #requests + 1
    return requests[next_request]
end

function done(summary, latency, _)
    local errors = summary.errors
    io.write(string.format(
        'heartline-bench {"requests":%d,"microseconds":%d,"bytes":%d,"not_2xx":%d,"connect":%d,'
            .. '"read":%d,"write":%d,"timeout":%d,"p50":%d,"p99":%d,"max":%d}\n',
        summary.requests, summary.duration, summary.bytes, errors.status, errors.connect,
        errors.read, errors.write, errors.timeout, latency:percentile(50),
        latency:percentile(99), latency.max))
end
