-- transfers.lua: the collectives that bench_comm measures: their sizes and bandwidths as nccl-tests defines them, and
-- data of which every element that arrives can be judged.
--
-- Element i that rank r sends is a small whole number, a function of r and of i modulo a prime: a part that lands in
-- the wrong place, comes from the wrong rank, is missing from a sum or counted twice shows. The numbers are so small
-- that their sums over the ranks are exact in the dtype, so results are compared byte by byte.
local spl = require "spl"
local transfers = {}

local PERIOD = 9973 -- a prime: no size that is a power of two, or a multiple of the ranks, hides a shift
local PERIODS_AT_ONCE = 64
local LARGEST = 65521
-- Whole numbers up to these are exact; for u8 one below, since 255 marks what nobody has written.
local EXACT = { f64 = 1 << 53, f32 = 1 << 24, bf16 = 1 << 8, f16 = 1 << 11, i64 = 1 << 53, i32 = 1 << 31, u8 = 254 }
local WIDTH = { f64 = 8, f32 = 4, bf16 = 2, f16 = 2, i64 = 8, i32 = 4, u8 = 1 }

--- Names of the collectives, in the order in which they are shown.
transfers.names = { "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send_recv" }
--- Names of the dtypes that can be judged.
transfers.dtypes = { "f64", "f32", "bf16", "f16", "i64", "i32", "u8" }

-- ---- what each collective moves

-- Sizes of both sides, of a rank's `part` (where the total is split) or of `all` elements.
local function same(_, all)
    return all, all
end

local function all_but_own(ranks)
    return (ranks - 1) / ranks
end

-- Where one rank's data passes through one link, the bus carries what the algorithm does; one rank has no bus.
local function through_one_link(ranks)
    return ranks > 1 and 1 or 0
end

local function own_part(whole, rank, part)
    return whole:narrow(1, rank * part + 1, part)
end

-- parts: the size is split among the ranks. expect: what a rank must receive, as a list of {source, start, count}.
local OPS = {
    all_gather = {
        parts = true, bus = all_but_own,
        counts = function(part, _, ranks) return part, part * ranks end,
        in_place = function(_, recv, rank, part) return own_part(recv, rank, part), recv end,
        expect = function(c)
            local list = {}
            for rank = 0, c.ranks - 1 do
                list[#list + 1] = { rank, 0, c.send }
            end
            return list
        end,
        run = function(mesh, axis, send, recv) mesh:all_gather(axis, send, recv) end,
    },
    reduce_scatter = {
        parts = true, bus = all_but_own, redop = "sum",
        counts = function(part, _, ranks) return part * ranks, part end,
        in_place = function(send, _, rank, part) return send, own_part(send, rank, part) end,
        expect = function(c) return { { "sum", c.rank * c.recv, c.recv } } end,
        run = function(mesh, axis, send, recv) mesh:reduce_scatter(axis, send, recv) end,
    },
    all_reduce = {
        redop = "sum", counts = same,
        bus = function(ranks) return 2 * (ranks - 1) / ranks end,
        in_place = function(_, recv) return recv, recv end,
        expect = function(c) return { { "sum", 0, c.recv } } end,
        run = function(mesh, axis, send, recv) mesh:all_reduce(axis, send, recv) end,
    },
    all_to_all = {
        parts = true, bus = all_but_own,
        counts = function(part, _, ranks) return part * ranks, part * ranks end,
        expect = function(c)
            local list, part = {}, c.recv // c.ranks
            for rank = 0, c.ranks - 1 do
                list[#list + 1] = { rank, c.rank * part, part }
            end
            return list
        end,
        run = function(mesh, axis, send, recv) mesh:all_to_all(axis, send, recv) end,
    },
    broadcast = {
        rooted = true, counts = same, bus = through_one_link,
        in_place = function(_, recv) return recv, recv end,
        expect = function(c) return { { c.root, 0, c.recv } } end,
        run = function(mesh, axis, send, recv, root) mesh:broadcast(axis, send, root, recv) end,
    },
    send_recv = {
        counts = same, bus = through_one_link,
        expect = function(c) return { { (c.rank - 1) % c.ranks, 0, c.recv } } end,
        run = function(mesh, axis, send, recv) mesh:shift(axis, send, 1, recv) end,
    },
}

---@class spl.transfer one collective of one size, as one rank sees it
---@field op string
---@field rank integer its coordinate on the axis
---@field ranks integer of the axis
---@field root integer -1 where there is none
---@field redop string "sum" or "none"
---@field count integer elements as NCCL's call names them: of one rank's part where the total is split
---@field size_bytes integer the larger of both sides
---@field send integer elements
---@field recv integer elements

--- [local] What `bytes` come to: rounded down as nccl-tests does, to whole elements, and where the total is split
--- among the ranks to parts of a multiple of 16 bytes.
---@param op string one of transfers.names
---@param bytes integer
---@param dtype string one of transfers.dtypes
---@param rank integer
---@param ranks integer
---@param root integer
---@return spl.transfer
function transfers.plan(op, bytes, dtype, rank, ranks, root)
    local o, width = OPS[op], WIDTH[dtype]
    local all = bytes // width
    local part = all // ranks & -(16 // width)
    local send, recv = o.counts(part, all, ranks)
    return { op = op, rank = rank, ranks = ranks, root = o.rooted and root or -1, redop = o.redop or "none",
        count = o.parts and part or all, size_bytes = math.max(send, recv) * width, send = send, recv = recv }
end

--- [local] The bandwidths of nccl-tests' PERFORMANCE.md, in 1e9 bytes a second: algbw = size / time, and busbw = algbw
--- times 2(n-1)/n for all-reduce, (n-1)/n where the total is split, 1 for broadcast and send/recv. One rank has no
--- bus: 0.
---@param c spl.transfer
---@param seconds number
---@return number algbw
---@return number busbw
function transfers.bandwidths(c, seconds)
    local algbw = c.size_bytes / seconds / 1e9
    return algbw, algbw * OPS[c.op].bus(c.ranks)
end

--- [local] The tensors that a call takes: views into two flat buffers. In place, nil where the collective cannot be.
---@param c spl.transfer
---@param in_place boolean
---@param send spl.tensor at least c.send elements
---@param recv spl.tensor at least c.recv elements
---@return spl.tensor? send
---@return spl.tensor? recv
function transfers.views(c, in_place, send, recv)
    if in_place and not OPS[c.op].in_place then
        return nil
    end
    send, recv = send:narrow(1, 1, c.send), recv:narrow(1, 1, c.recv)
    if in_place then
        return OPS[c.op].in_place(send, recv, c.rank, c.count)
    end
    return send, recv
end

--- [collective over the axis] Runs it once.
---@param c spl.transfer
---@param mesh spl.mesh
---@param axis string
---@param send spl.tensor
---@param recv spl.tensor
function transfers.run(c, mesh, axis, send, recv)
    OPS[c.op].run(mesh, axis, send, recv, c.root)
end

-- ---- data that can be judged

---@class spl.transfers.data
local data = {}
data.__index = data

--- [local] Data of a dtype for an axis of this many ranks.
---@param dtype string one of transfers.dtypes
---@param ranks integer
---@return spl.transfers.data
function transfers.data(dtype, ranks)
    local exact = EXACT[dtype]
    -- Where not even a one of each rank could be summed exactly, the ranks take turns: `turns` - 1 of them hold a zero.
    local turns = (2 * ranks + exact - 1) // exact
    local most = math.min(LARGEST, exact // ((ranks + turns - 1) // turns))
    return setmetatable({ dtype = dtype, width = WIDTH[dtype], ranks = ranks, turns = turns, most = most, periods = {},
        unwritten = dtype == "u8" and 255 or -1 }, data)
end

function data:value(rank, i)
    if (i + rank) % self.turns ~= 0 then
        return 0
    end
    return (31 * i + 7919 * rank + i // 251) % self.most
end

-- One period of what a rank sends, or of the "sum" of all.
function data:period(source)
    local list = {}
    for i = 0, PERIOD - 1 do
        local value = 0
        if source == "sum" then
            for rank = 0, self.ranks - 1 do
                value = value + self:value(rank, i)
            end
        else
            value = self:value(source, i)
        end
        list[i + 1] = value
    end
    return list
end

function data:period_bytes(source)
    local known = self.periods[source]
    if not known then
        local t <close> = spl.from_table(self:period(source), self.dtype)
        known = t:to_bytes()
        self.periods[source] = known
    end
    return known
end

--- [local] Fills a flat tensor with what the rank at coordinate `rank` sends.
---@param t spl.tensor
---@param rank integer
function data:fill(t, rank)
    local n, done = t.count, math.min(PERIOD, t.count)
    local first <close> = t:narrow(1, 1, done)
    if self.own_rank ~= rank then
        self.own, self.own_rank = self:period(rank), rank
    end
    first:set_local(done == PERIOD and self.own or table.move(self.own, 1, done, 1, {}))
    while done < n do -- what is there already, once more: whole periods
        local more = math.min(done, n - done)
        local from <close> = t:narrow(1, 1, more)
        local to <close> = t:narrow(1, done + 1, more)
        to:set(from)
        done = done + more
    end
end

--- [local] Brings the buffers into the state before a call: what is to be sent, and marks where it is to arrive.
---@param c spl.transfer
---@param send spl.tensor
---@param recv spl.tensor
function data:prepare(c, send, recv)
    recv:fill(self.unwritten)
    self:fill(send, c.rank)
end

-- Elements of `width` bytes that differ between two strings of one length.
local function differing(a, b, width)
    if a == b then
        return 0
    elseif #a == width then
        return 1
    end
    local half = #a // width // 2 * width
    return differing(a:sub(1, half), b:sub(1, half), width) + differing(a:sub(half + 1), b:sub(half + 1), width)
end

--- [local] How many elements of `recv` are not what the call must give this rank: every one is compared, exactly.
---@param c spl.transfer
---@param recv spl.tensor flat
---@return integer
function data:count_wrong(c, recv)
    local wrong, at = 0, 0
    for _, part in ipairs(OPS[c.op].expect(c)) do
        local source, start, count = table.unpack(part)
        local period, turn = self:period_bytes(source), start % PERIOD * self.width
        local block = (period:sub(turn + 1) .. period:sub(1, turn)):rep(math.min(PERIODS_AT_ONCE, count // PERIOD + 1))
        for from = 0, count - 1, PERIODS_AT_ONCE * PERIOD do
            local n = math.min(count - from, PERIODS_AT_ONCE * PERIOD)
            local piece <close> = recv:narrow(1, at + from + 1, n)
            wrong = wrong + differing(piece:to_bytes(), block:sub(1, n * self.width), self.width)
        end
        at = at + count
    end
    return wrong + recv.count - at
end

return transfers
