-- Asks Headgate about a request and refuses what it refuses. HAProxy 2.6 or later,
-- with Lua 5.3 or later.

local url = "http://127.0.0.1:3001/forward-auth"

-- What the API is told comes from the answer, or not at all.
local ours = { "x-cwms-auth-context", "x-request-id", "authorization", "cookie" }

local function refuse(txn, status, headers, body)
    local reply = txn:reply{ status = status, body = body }
    for name, values in pairs(headers) do
        for _, value in pairs(values) do reply:add_header(name, value) end
    end
    txn:done(reply)
end

core.register_action("headgate", { "http-req" }, function(txn)
    -- The client's headers, from 0 there and from 1 here.
    local headers = {}
    for name, values in pairs(txn.http:req_get_headers()) do
        headers[name] = {}
        for _, value in pairs(values) do table.insert(headers[name], value) end
    end
    -- The body stays here.
    for _, name in ipairs{ "content-length", "transfer-encoding", "expect", "te", "trailer" } do headers[name] = nil end
    headers["x-forwarded-method"] = { txn.f:method() }
    headers["x-forwarded-uri"] = { txn.f:pathq() }
    headers["x-forwarded-host"] = { txn.f:req_hdr("host") or "" }

    local answer = core.httpclient():get{ url = url, headers = headers, timeout = 35000 }

    -- Without an id it is not Headgate that answers.
    local status = answer and answer.headers and answer.headers["x-request-id"] and answer.status or 0
    if status < 200 or status >= 300 then
        if status < 400 then
            refuse(txn, 503, { ["content-type"] = { "application/json" }, ["retry-after"] = { "1" } },
                '{"error":"Service Unavailable","message":"no decision"}')
            return
        end
        local told = {}
        for _, name in ipairs{ "content-type", "cache-control", "www-authenticate", "retry-after", "x-request-id" } do
            told[name] = answer.headers[name]
        end
        refuse(txn, status, told, answer.body)
        return
    end
    for _, name in ipairs(ours) do
        txn.http:req_del_header(name)
        for _, value in pairs(answer.headers[name] or {}) do txn.http:req_add_header(name, value) end
    end
end)
