-- scaling.lua: how one transformer block gets faster with more ranks (strong scaling), for the two Megatron schedules.
-- spl sweep scaling && spl report sweep-scaling
return {
    about = "strong scaling of one transformer block: time and efficiency against the number of ranks",
    script = "sp_forward.lua",
    options = { hidden = 768, heads = 12, rounds = 5, warmup = 1, batch = 1 },
    grid = {
        ranks = { 1, 2, 3, 4 },
        seq = { 1024, 4096 },
        mesh = { "tp=*:tensor", "tp=*:sequence" },
    },
    repeats = 3,
    timeout = 900,
    trace = true,
    report = { x = "ranks", y = "time_ms_p50", series = "mesh" },
}
