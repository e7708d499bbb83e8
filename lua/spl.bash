# spl.bash: completion for bash: commands, options, scripts (paths and shipped names), and the options of shipped scripts.
# Asks the program itself, so that it is never behind it; a user's own script is not run to learn its options.

_spl_folder() {
    local program
    program=$(readlink -f "$(type -P "$1" 2>/dev/null)" 2>/dev/null) || return 1
    [[ -n $program ]] || return 1
    local folder
    for folder in "${program%/*}/../share/spl/scripts" "${program%/*}/../scripts"; do
        [[ -d $folder ]] && { printf '%s\n' "$folder"; return 0; }
    done
    return 1
}

_spl_commands() {
    timeout 5 "$1" --help 2>/dev/null | sed -n 's/^  spl \([a-z]*\).*/\1/p'
}

# The options in a text of --help: "--mesh", "-n", and both of "--[no-]causal".
_spl_options() {
    timeout 5 "$@" --help 2>/dev/null | sed -n \
        -e 's/^  --\[no-\]\([a-z0-9-]*\).*/--\1 --no-\1/p' -e 's/^  \(--*[a-z][a-z0-9-]*\).*/\1/p'
}

_spl_shipped() {
    local folder
    folder=$(_spl_folder "$1") && (cd "$folder" && find . -name '*.lua' | sed 's|^\./||')
}

_spl() {
    local program=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}
    local command=${COMP_WORDS[1]-} script="" i
    COMPREPLY=()
    if (( COMP_CWORD == 1 )); then
        mapfile -t COMPREPLY < <(compgen -W "$(_spl_commands "$program") --help" -- "$word")
        return
    fi
    case $previous in
    --backend) mapfile -t COMPREPLY < <(compgen -W "cpu cuda null" -- "$word"); return ;;
    -n | --virtual | --threads | --timeout) return ;;
    --trace | --out) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
    esac
    if [[ $command == help && $word != -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_spl_commands "$program") api roles schemes scripts sweeps" -- "$word")
        return
    fi
    for (( i = 2; i < COMP_CWORD; i++ )); do
        case ${COMP_WORDS[i]} in
        -n | --virtual | --threads | --timeout | --backend | --trace) (( i++ )) ;;
        -*) ;;
        *) script=${COMP_WORDS[i]}; break ;;
        esac
    done
    local options=""
    if [[ $word == -* ]]; then
        options="$(_spl_options "$program" "$command") --help"
        if [[ $command == run && -n $script ]] && _spl_shipped "$program" | grep -qxF -e "$script" -e "$script.lua" &&
            [[ ! -e $script ]]; then
            options="$options $(_spl_options "$program" run "$script")"
        fi
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
    elif [[ $command == run && -z $script ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_spl_shipped "$program")" -- "$word"
            compgen -f -X '!*.lua' -- "$word"
            compgen -d -S / -- "$word")
    elif [[ $command == report ]]; then
        mapfile -t COMPREPLY < <(compgen -d -- "$word")
    elif [[ $command == sweep ]]; then
        local folder
        folder=$(_spl_folder "$program") && mapfile -t COMPREPLY < <(
            compgen -W "$(cd "$folder/sweeps" && for f in *.lua; do echo "${f%.lua}"; done)" -- "$word"
            compgen -f -X '!*.lua' -- "$word"
            compgen -d -S / -- "$word")
    elif [[ $command == run || $command == test || $command == trace ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}

complete -o filenames -F _spl spl
