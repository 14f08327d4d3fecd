# The part of a Slurm job's script that is the same for all runs. `slurm.py` writes the variables
# new_logdir, flags, jobs, counts, on_one_node, ports, mpirun, mounts, images, make_token and record_end
# and the functions learner, actor and evaluator before it.
# All nodes share LOGDIR/slurm, which holds this script, the run's token and the learners' addresses.

# Wait for process $1, however many signals arrive meanwhile; set `code` to its exit code.
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
  trap 'exit 0' USR1 # there is nothing to save yet
  "$job" "$number"
  command+=("--learner_hosts=$(cat "$logdir/slurm/learner_hosts")")
  command+=("--logdir=$logdir" "--token_file=$logdir/slurm/token")
  if [ "$job" = learner ]; then
    exec "${command[@]}"
  fi
  if [ "$job" = actor ]; then
    command+=("--task=$number")
  fi
  restart_after_crashes
}

# Run `command` with its own log, and restart it after crashes.
restart_after_crashes() {
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
      echo "$job $number on ${SLURMD_NODENAME:-this node} exited with code $code; the last line" \
        "of its log $log: $(tail -n 1 -- "$log")"
    fi
    if [ "$code" = 2 ]; then # a mistake in its flags: a restart would not help
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
  # Slurm sends USR1 before the job's time ends (--signal); TERM comes from the user or scancel.
  trap 'signalled=1 asked=requeue; save' USR1
  trap 'signalled=1 asked=stop; save' TERM
  share
  find_learners
  start_learners
  others=() evaluators=()
  for component in "${!jobs[@]}"; do
    if [ "$component" -gt 0 ]; then
      start "$component" --mpi=none --kill-on-bad-exit=0 --wait=0 --no-kill
      others+=("$!")
      [ "${jobs[component]}" != evaluator ] || evaluators+=("$!")
    fi
  done
  echo "job $SLURM_JOB_ID: learners at $(cat "$state/learner_hosts"); results: $logdir"
  await "$learners"
  end_others
  if [ "${#record_end[@]}" -gt 0 ] && [ -z "$asked" ] && [ "$code" = 0 ]; then
    here "${record_end[@]}" "$SLURM_ARRAY_TASK_ID" # the journal of the experiment has its end
  fi
  rm -rf -- "$state"
  if [ "$asked" = requeue ] && [ "$code" = 0 ]; then
    echo "saved, since this job's time is over; it resumes when Slurm starts the job again"
    scontrol requeue "$SLURM_JOB_ID" || fail "Slurm cannot requeue the job: a job with \
the same flags and --logdir=$logdir resumes the run"
  fi
  exit "$code"
}

# Ask the learners to save and end.
save() {
  if [ -n "$learners" ]; then
    kill -USR1 "$learners" 2>/dev/null
  fi
}

# Write the files that all processes need. The token and its certificates are new at each start; only
# their owner can read them.
share() {
  (umask go-w && mkdir -p -- "$logdir") && rm -rf -- "$state" && mkdir -m 700 -- "$state" &&
    cp -- "$0" "$state/job.sh" ||
    fail "$logdir cannot be written on $(hostname); it must be a folder that all nodes share"
  if [ -n "$(find "$logdir/." -maxdepth 0 -perm /022 ! -perm -1000)" ]; then
    echo "warning: others can write $logdir, replace the job's script there and so run programs as" \
      "you: chmod go-w $logdir"
  fi
  here "${make_token[@]}" "$state/token" ||
    fail "the run's token file could not be made on $(hostname)"
}

# Write the addresses of the nodes on which Slurm has placed the learners.
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

# Start the learners. Several learners are MPI ranks: srun starts them if this Slurm was built with
# PMIx, otherwise the mpirun that Horovod was built with.
start_learners() {
  local by=${LEARNERS_BY:-mpirun}
  if [ -z "${LEARNERS_BY:-}" ] && srun --mpi=list 2>&1 | grep -qw pmix; then
    by=srun
  fi
  if [ "${#ports[@]}" = 1 ]; then
    start 0 --mpi=none
  elif [ "$by" = srun ]; then
    start 0 --mpi=pmix --kill-on-bad-exit=1
  elif [ -n "${images[0]}" ]; then
    fail "several learners in containers need srun with PMIx (srun --mpi=list)"
  else
    "${mpirun[@]}" --host "$(cut -d ' ' -f 2 <<< "$placed" | paste -sd ,)" --map-by slot \
      -np "${#ports[@]}" bash "$state/job.sh" learner "$logdir" &
  fi
  learners=$!
}

# Start the processes of a component: start COMPONENT WORDS_OF_SRUN...
start() {
  contain "$1"
  step "$@" "${container[@]}" bash "$state/job.sh" "${jobs[$1]}" "$logdir" &
}

# Set `container` to srun's words for the containers of a component, if it has an image (pyxis).
contain() {
  container=()
  if [ -n "${images[$1]}" ]; then
    container=("--container-image=${images[$1]}" --no-container-entrypoint
      "--container-mounts=$logdir:$logdir$mounts")
  fi
}

# Run a command of the job itself, where the learners' programs are.
here() {
  contain 0
  if [ -n "${images[0]}" ]; then
    (step 0 --ntasks=1 --nodes=1 --mpi=none "${container[@]}" "$@")
  else
    "$@"
  fi
}

# Run srun on a component of the job: step COMPONENT WORDS... It replaces this shell, so that signals
# reach srun.
step() {
  local component=$1 cpus=SLURM_CPUS_PER_TASK_HET_GROUP_$1 group=()
  if [ -n "$on_one_node" ]; then # all processes share the job's cores, memory and GPUs
    exec srun --ntasks="${counts[component]}" --overlap --whole --overcommit --cpu-bind=none "${@:2}"
  fi
  if [ "${#jobs[@]}" -gt 1 ]; then
    group=("--het-group=$component")
  fi
  exec srun "${group[@]}" --cpus-per-task="${!cpus:-${SLURM_CPUS_PER_TASK:-1}}" \
    --distribution=block "${@:2}"
}

# End actors and evaluators. An evaluator may test the last checkpoint for two minutes, unless the
# job itself is to end.
end_others() {
  local try waited=("${others[@]}")
  for try in {1..240}; do
    if [ "$try" = 21 ]; then
      waited=("${evaluators[@]}")
      [ -z "$asked" ] || break
    fi
    kill -0 "${waited[@]}" 2>/dev/null || break
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
