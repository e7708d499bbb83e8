#!/bin/sh
# spills.sh: reads what ptxas says (-Xptxas -v) and fails when a hot kernel, the attention on tensor cores, keeps registers
# in memory: more than 0 bytes, or more than 16 with dropout, whose random words need many.   spills.sh LOG
awk '
    /Compiling entry function/ { name = $0; sub(/.*function ./, "", name); sub(/. for .*/, "", name); arch = $NF }
    /bytes spill stores/ {
        for (i = 2; i <= NF; i++) if ($i == "bytes" && $(i + 1) == "spill" && $(i + 2) ~ /stores/) bytes = $(i - 1)
        if (name !~ /attention_mma_kernel/) next
        seen++
        limit = name ~ /Lb1E/ ? 16 : 0
        if (bytes > limit) { print "spills: " name " for " arch " spills " bytes " bytes, " limit " are allowed"; bad = 1 }
    }
    END { exit bad }
' "$1"
