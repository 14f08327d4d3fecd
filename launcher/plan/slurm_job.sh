# What the script of a Slurm job does once it knows its rows, which `slurm.py` writes before this:
# new_logdir, flags, jobs, ports, mpirun, and the functions learner, actor and evaluator. In
# LOGDIR/slurm, which all nodes share, processes find this script, the run's token and the learners.

# Waits for process $1, however many signals come in between; its exit code is in `code`.
await() {
  while :; do
    signalled=''
    wait "$1"
    code=$?
    [ -n "$signalled" ] || return 0
  done
}

# -- one process of a step: THIS_FILE JOB LOGDIR

process() {
  job=$1 logdir=$2 number=${OMPI_COMM_WORLD_RANK:-${SLURM_PROCID:-0}}
  trap 'exit 0' USR1 # nothing was learnt yet
  "$job" "$number"
  command+=("--learner_hosts=$(cat "$logdir/slurm/learner_hosts")")
  command+=("--logdir=$logdir" "--token_file=$logdir/slurm/token")
  if [ "$job" = learner ]; then
    exec "${command[@]}"
  fi
  if [ "$job" = actor ]; then
    command+=("--task=$number")
  fi
  again
}

# Who dies is started again; what it says is in a file of its own.
again() {
  local log=$logdir/$job-$number.log pause=1 began child='' ended=''
  trap 'signalled=1 ended=1; [ -z "$child" ] || kill -USR1 "$child" 2>/dev/null' USR1 TERM
  while [ -z "$ended" ]; do
    began=$SECONDS
    "${command[@]}" >> "$log" 2>&1 &
    child=$!
    await "$child"
    child=''
    if [ -n "$ended" ]; then
      break
    fi
    if [ $((SECONDS - began)) -ge 600 ]; then
      pause=1
    fi
    if [ "$pause" = 1 ] || [ "$code" = 2 ]; then
      echo "$job $number on ${SLURMD_NODENAME:-this node} ended with exit code $code; its log" \
        "$log ends: $(tail -n 1 -- "$log")"
    fi
    if [ "$code" = 2 ]; then # what it was told is wrong: starting it again helps nobody
      exit 2
    fi
    sleep "$pause"
    pause=$((pause < 16 ? 2 * pause : 30))
  done
  exit 0
}

# -- the job: all of them

fail() {
  echo "error: $1" >&2
  exit 1
}

job() {
  logdir=$new_logdir state=$new_logdir/slurm asked='' learners=''
  # Before its time ends (--signal) Slurm sends USR1; TERM is the user's wish, or scancel's.
  trap 'signalled=1 asked=requeue; order' USR1
  trap 'signalled=1 asked=stop; order' TERM
  share
  find_learners
  start_learners
  others=()
  for component in "${!jobs[@]}"; do
    if [ "$component" -gt 0 ]; then
      start "$component" --mpi=none --kill-on-bad-exit=0 --wait=0 --no-kill
      others+=("$!")
    fi
  done
  echo "job $SLURM_JOB_ID: learners at $(cat "$state/learner_hosts"); all of it in $logdir"
  await "$learners"
  end_others
  rm -rf -- "$state"
  if [ "$asked" = requeue ] && [ "$code" = 0 ]; then
    echo "saved, for this job's time is over; it goes on when Slurm starts it again"
    scontrol requeue "$SLURM_JOB_ID" || fail "Slurm does not start it again: a job of the \
same flags and --logdir=$logdir goes on from there"
  fi
  exit "$code"
}

order() {
  if [ -n "$learners" ]; then
    kill -USR1 "$learners" 2>/dev/null
  fi
}

# What all processes are to find. The token is new at each start, and its owner's alone.
share() {
  mkdir -p -- "$logdir" && rm -rf -- "$state" && mkdir -m 700 -- "$state" &&
    cp -- "$0" "$state/job.sh" &&
    (umask 077 && head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' > "$state/token") ||
    fail "$logdir cannot be written on $(hostname); it must be a folder that all nodes share"
}

# Where Slurm puts the learners is where actors reach them.
find_learners() {
  local rank node address found=''
  placed=$(step 0 --mpi=none bash -c 'echo "$SLURM_PROCID $SLURMD_NODENAME"' | sort -n) ||
    fail "Slurm did not start a step on the learners' nodes"
  while read -r rank node; do
    address=$(scontrol -o show node "$node" | grep -o ' NodeAddr=[^ ]*')
    address=${address#*=}
    found+=,${address:-$node}:${ports[rank]}
  done <<< "$placed"
  echo "${found#,}" > "$state/learner_hosts"
}

# Several learners are ranks of MPI. srun joins them where this Slurm was built with PMIx; else the
# mpirun that Horovod was built with does.
start_learners() {
  local by=${LEARNERS_BY:-mpirun}
  if [ -z "${LEARNERS_BY:-}" ] && srun --mpi=list 2>&1 | grep -qw pmix; then
    by=srun
  fi
  if [ "${#ports[@]}" = 1 ]; then
    start 0 --mpi=none
  elif [ "$by" = srun ]; then
    start 0 --mpi=pmix --kill-on-bad-exit=1
  else
    "${mpirun[@]}" --host "$(cut -d ' ' -f 2 <<< "$placed" | paste -sd ,)" --map-by slot \
      -np "${#ports[@]}" bash "$state/job.sh" learner "$logdir" &
  fi
  learners=$!
}

start() {
  local component=$1
  step "$@" bash "$state/job.sh" "${jobs[component]}" "$logdir" &
}

# srun on a component of the job: COMPONENT WORDS... Becomes it: signals are srun's own.
step() {
  local component=$1 cpus=SLURM_CPUS_PER_TASK_HET_GROUP_$1 group=()
  if [ "${#jobs[@]}" -gt 1 ]; then
    group=("--het-group=$component")
  fi
  exec srun "${group[@]}" --cpus-per-task="${!cpus:-${SLURM_CPUS_PER_TASK:-1}}" \
    --distribution=block "${@:2}"
}

end_others() {
  local try
  for try in {1..20}; do
    kill -0 "${others[@]}" 2>/dev/null || return 0
    if [ "$try" = 1 ]; then
      kill -USR1 "${others[@]}" 2>/dev/null
    fi
    sleep 0.5
  done
  kill -TERM "${others[@]}" 2>/dev/null
}

if [ "$#" = 2 ]; then
  process "$@"
else
  job
fi
