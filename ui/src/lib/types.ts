// Made from the OpenAPI document by `make ui`.

/** JSON of users: text, numbers, lists, objects. */
export type Value = any;

/** An answer. It is given by the caller of the request. */
export interface AnswerBody {
  payload?: Value;
  approval_id?: string | null;
}

/** An open approval. */
export interface ApprovalItem {
  id: string;
  run_id: string;
  child: string;
  program: string;
  name: string;
  path: string;
  request: Value;
  schema: Value;
  approvers: string[];
  answerable: boolean;
  asked_at: string;
  deadline: string | null;
  escalates_at: string | null;
}

/** Open approvals, the oldest first. */
export interface Approvals {
  approvals: ApprovalItem[];
  next: string | null;
}

/** One try of a step. */
export interface AttemptItem {
  number: number;
  status: string;
  error: FailureItem | null;
  started_at: string;
  finished_at: string | null;
  retry_at: string | null;
  fallback: boolean;
}

/** The range of ticks: from `since`, up to but without `until`. */
export interface BackfillBody {
  start: string;
  end: string;
}

/** The ids of the runs that were started, one for each tick. `duplicate`: as for a trigger. */
export interface Backfilled {
  ids: string[];
  duplicate: boolean;
}

/** The runs that ended in one bucket, by status. */
export interface BucketItem {
  at: string;
  counts: Record<string, number>;
}

/** An action, and the runs it acts on: `ids`, or those that match a filter. */
export interface BulkBody {
  action: "cancel" | "pause" | "resume" | "retry" | "signal";
  ids?: string[] | null;
  filter?: BulkFilter | null;
  options?: BulkOptions;
  dry_run?: boolean;
}

/** A run for which the action failed, and why. */
export interface BulkFailure {
  id: string;
  error: string;
}

/** Which runs, as in the parameters of the list of runs. */
export interface BulkFilter {
  status: string[];
  program: string | null;
  tags: Record<string, string>;
  queue: string | null;
  owner: string | null;
  parked: string | null;
  parent: string | null;
  root: string | null;
  q: string | null;
  since: string | null;
  until: string | null;
}

/** The progress of a bulk action. `id` is that of the run which performs it; null for a dry run. */
export interface BulkItem {
  id: string | null;
  run_id: string | null;
  action: string;
  status: RunStatus | null;
  done: number;
  skipped: number;
  failed: number;
  failures: BulkFailure[];
  ids: string[];
  more: boolean;
}

/** Parameters of the action: a reason for `cancel` and `pause`; name, payload and signal_id for `signal`. */
export interface BulkOptions {
  reason: string | null;
  name: string | null;
  payload: Value;
  signal_id: string | null;
}

/** Runs that have changed. */
export interface ChangedItem {
  run_ids: string[];
  more: boolean;
}

/** One check: what was checked, the result, and what to do about it. */
export interface CheckItem {
  name: string;
  verdict: "fail" | "ok" | "warn";
  found: string;
  fix: string;
}

/** A run, and whether it fits the code of this server: one line of an upgrade check. */
export interface CheckedRun {
  id: string;
  run_id: string;
  program: string;
  version: string;
  status: RunStatus;
  fit: string;
  reason: string;
  kind: string;
  title: string;
  source: string;
}

/** A chunk that a step emitted. `restart`: earlier chunks of the step are void. */
export interface ChunkItem {
  index: number;
  path: string;
  value: Value;
  attempt: number;
  restart: boolean;
}

/** A number of runs. `bounded`: there may be more; counting stops at 100,000 for each program and status. */
export interface CountItem {
  status: string | null;
  program: string | null;
  count: number;
  bounded: boolean;
}

/** Numbers of runs. `at` is when they were counted: a count is kept for 2 seconds. */
export interface Counts {
  counts: CountItem[];
  at: string;
}

/** The code that `perdure dev` executes, and the state of the last edit. */
export interface DevState {
  module: string;
  status: "broken" | "checking" | "held" | "live";
  since: string;
  problem: string;
  checked: number;
  runs: CheckedRun[];
  folder: string;
}

/** Two runs side by side. `first` is the first op that differs; `takes`: where each run takes its arguments from. */
export interface Diff {
  a: string;
  b: string;
  first: string | null;
  added: string[];
  removed: string[];
  takes: string[] | null;
  ops: DiffItem[];
}

/** An op in two runs. `changes` are the fields that differ: none if the op is the same in both. */
export interface DiffItem {
  path: string;
  changes: string[];
  a: DiffSide | null;
  b: DiffSide | null;
}

/** An op in one run. A large value is left out: `bytes` is its size. */
export interface DiffSide {
  status: string;
  value: Value;
  bytes: number;
  error: ErrorItem | null;
  attempts: number;
  took: number | null;
  source: string;
}

/** Every check of the store. `ok`: none has failed. */
export interface Doctor {
  ok: boolean;
  checks: CheckItem[];
}

/** The outcome. `duplicate`: the same message had come before, and counts once. */
export interface Done {
  answer: "accepted" | "duplicate" | "finished" | "not_found";
  duplicate: boolean;
  status: RunStatus | null;
  again: string[];
}

/** An empty object. */
export interface EmptyBody {
}

/** An error, shortened for a list. */
export interface ErrorItem {
  type: string;
  message: string;
}

/** One event of a journal. */
export interface EventItem {
  seq: number;
  run_id: string;
  at: string;
  kind: string;
  event: Value;
}

/** An error with its traceback, its cause, and the exceptions of a group. */
export interface FailureItem {
  type: string;
  message: string;
  traceback: string;
  cause: FailureItem | null;
  errors: FailureItem[];
  data: Value;
}

/** One thing that is wrong with what was sent, and where: a JSON pointer, or the name of a query parameter. */
export interface FieldError {
  pointer: string;
  detail: string;
}

/** Where a fork begins, and with which changes; see `Engine.fork`. */
export interface ForkBody {
  at?: string | number | null;
  values?: Record<string, Value> | null;
  inputs?: Record<string, Value> | null;
  state?: Record<string, Value> | null;
  new_id?: string | null;
}

/** A function under way: its line, and its variables as text. */
export interface FrameItem {
  function: string;
  source: string;
  variables: Record<string, string>;
}

/** An edge between two nodes. `taken`: the run went this way. */
export interface GraphEdge {
  source: string;
  target: string;
  label: string;
  link: "gate" | "loop" | "order" | "value";
  taken: boolean;
}

/** A node of a graph. `within` is the node of the nested graph that contains it, if that is open. */
export interface GraphNode {
  id: string;
  label: string;
  shape: "child" | "gate" | "input" | "map" | "question" | "step";
  status: string;
  path: string;
  within: string | null;
}

/** A graph, without a layout. */
export interface GraphView {
  nodes: GraphNode[];
  edges: GraphEdge[];
}

/** Whether the server is alive, or ready. */
export interface Health {
  status: string;
}

/** Ended runs per bucket. */
export interface Histogram {
  bucket: "day" | "hour" | "minute";
  buckets: BucketItem[];
}

/** Items that have started, in order. `next` is the `start` of the next page. */
export interface Items {
  items: MapItem[];
  next: number | null;
}

/** Events in order. `next` is the `start` of the page after it; `next_seq` the number of the next event. */
export interface Journal {
  events: EventItem[];
  next: number | null;
  next_seq: number;
}

/** An answering link. It is shown once: only its hash is stored. */
export interface Link {
  path: string;
  expires_at: string;
}

/** The person that an answering link is for, and for how many seconds it is valid. */
export interface LinkBody {
  person: string;
  ttl?: number;
}

/** A lock in force. `run_id` and `id` are those of the run that holds it. */
export interface LockItem {
  key: string;
  owner: string;
  token: number;
  expires_at: string;
  run_id: string | null;
  id: string | null;
}

/** Locks, by key. */
export interface Locks {
  locks: LockItem[];
}

/** One item of a map. */
export interface MapItem {
  index: number;
  path: string;
  status: string;
  output: Value;
  error: FailureItem | null;
  reason: string;
}

/** The caller, what they may do, and the features of this server. */
export interface Me {
  name: string;
  may: string[];
  programs: string[] | null;
  signed_in: "cookie" | "host" | "machine" | "token";
  expires_at: string | null;
  redacted: string[];
  version: string;
  store: string;
  executes: boolean;
  time: string;
  features: string[];
  trace_url: string | null;
}

/** The next ticks of a schedule, with jitter. */
export interface NextTicks {
  next: string[];
}

/** An event without data. */
export interface Nothing {
}

/** One op with what is known of it. */
export interface OpDetail {
  path: string;
  kind: string;
  status: string;
  source: string;
  name: string;
  attempts: AttemptItem[];
  output: Value;
  error: FailureItem | null;
  progress: Value;
  chunks: Value[];
  input_hash: string;
  inputs: Record<string, Value> | null;
  inputs_from: "record" | "replay" | null;
  request: Value;
  schema: Value;
  deadline: string | null;
  by: string;
  reason: string;
  replayed: boolean;
  child_run_id: string | null;
  first_seq: number;
  last_seq: number;
}

/** Ops in columns, in the order they began: the n-th entries of all columns belong together. */
export interface Ops {
  run_id: string;
  next_seq: number;
  total: number;
  complete: boolean;
  next: number | null;
  number: number[];
  path: string[];
  kind: string[];
  status: string[];
  start: number[];
  end: (number | null)[];
  attempts: number[];
  source: string[];
  group: string[];
  queue: string[];
  seq: number[];
  due: (number | null)[];
  tries: Record<string, (number | null)[]>;
  owned: Value[][];
  held: Value[][];
  began: number;
  not_before: number | null;
  ended: number | null;
}

/** A live orchestrator, or a dead one that still owns runs, which another one has to take over. */
export interface OrchestratorItem {
  name: string;
  alive: boolean;
  running: number;
  waiting: number;
  session: string | null;
  expires_at: string | null;
  programs: string[] | null;
}

/** Orchestrators, by name. */
export interface Orchestrators {
  orchestrators: OrchestratorItem[];
}

/** What went wrong, as RFC 9457 writes it: `code` is stable, `detail` is for people, `hint` says what to do. */
export interface ProblemBody {
  type: string;
  title: string;
  status: number;
  detail: string;
  instance: string;
  code: string;
  hint?: string;
  errors?: FieldError[];
  divergence?: Value;
}

/** A program with the JSON Schema of its arguments, as an object; null where they are not known. */
export interface ProgramDetail {
  name: string;
  versions: string[];
  orchestrators: string[];
  here: boolean;
  parameters: Value;
  signature: string;
  source: SourcePart[];
  graph: boolean;
}

/** A program. */
export interface ProgramItem {
  name: string;
  versions: string[];
  orchestrators: string[];
  here: boolean;
}

/** Programs, by name. */
export interface Programs {
  programs: ProgramItem[];
}

/** A queue with its runs by key. `bounded`: only its newest 1,000 open runs were read. */
export interface QueueDetail {
  queue: QueueItem;
  keys: QueueKey[];
  bounded: boolean;
  next: RunItem[];
}

/** The numbers of a queue. `oldest`: how many seconds its oldest queued run has waited. */
export interface QueueItem {
  name: string;
  queued: number;
  running: number;
  oldest: number | null;
  limits: QueueLimits | null;
}

/** The runs of a queue that have the same key. */
export interface QueueKey {
  key: string | null;
  queued: number;
  running: number;
}

/** The limits of a queue: runs at once, runs with the same key at once, and `rate` starts in `rate_seconds`. */
export interface QueueLimits {
  concurrency: number | null;
  per_key: number | null;
  rate: number | null;
  rate_seconds: number | null;
}

/** All queues, by name. */
export interface Queues {
  queues: QueueItem[];
}

/** The reason, for the journal. */
export interface ReasonBody {
  reason?: string | null;
}

/** A rejection. */
export interface RejectBody {
  reason?: string | null;
  approval_id?: string | null;
}

/** How a parked run continues, or ends; without fields, it is tried again as it is. */
export interface ResolveBody {
  version?: string | null;
  fail?: string | null;
  before?: string | null;
}

/** How many rounds the loops of a graph may have from now on. */
export interface RetryBody {
  reason?: string | null;
  max_rounds?: number | null;
}

/** A run. The fields from `state` on come from its journal, and are null if that was not read. */
export interface RunDetail {
  id: string;
  run_id: string;
  program: string;
  version: string;
  status: RunStatus;
  reason: string;
  error: ErrorItem | null;
  owner: string | null;
  epoch: number;
  tags: Record<string, string>;
  parent: string | null;
  root: string;
  forked_from: string | null;
  continued_as: string | null;
  incarnation: number;
  created_at: string;
  updated_at: string;
  began_at: string | null;
  finished_at: string | null;
  due_at: string | null;
  next_seq: number;
  size: number;
  queue: string | null;
  key: string | null;
  priority: number;
  approvals: number;
  input: Value;
  output: Value;
  failure: FailureItem | null;
  state: Record<string, Value> | null;
  waits: WaitItem[] | null;
  locks: string[] | null;
  parked: string | null;
  divergence: Value;
  continued_from: string | null;
  why: WhyItem | null;
  trace: string | null;
  graph: boolean;
}

/** The end of a stream of events. `continued_as`: the run_id of the next incarnation. */
export interface RunEnd {
  status: RunStatus;
  continued_as: string | null;
}

/** A run in a list, without its values. */
export interface RunItem {
  id: string;
  run_id: string;
  program: string;
  version: string;
  status: RunStatus;
  reason: string;
  error: ErrorItem | null;
  owner: string | null;
  epoch: number;
  tags: Record<string, string>;
  parent: string | null;
  root: string;
  forked_from: string | null;
  continued_as: string | null;
  incarnation: number;
  created_at: string;
  updated_at: string;
  began_at: string | null;
  finished_at: string | null;
  due_at: string | null;
  next_seq: number;
  size: number;
  queue: string | null;
  key: string | null;
  priority: number;
  approvals: number;
}

/** The status of a run. */
export type RunStatus = "bailed" | "cancelled" | "completed" | "failed" | "parked" | "paused" | "queued" | "running" | "waiting";

/** A page of runs, newest first. `next` is the cursor of the page after it. */
export interface Runs {
  runs: RunItem[];
  next: string | null;
  why: Record<string, WhyItem>;
  searched: number | null;
  exact: RunItem | null;
}

/** A schedule to store. Durations are in seconds. */
export interface ScheduleBody {
  program: string;
  args?: Value[];
  kwargs?: Record<string, Value>;
  every?: number | null;
  cron?: string | null;
  timezone?: string;
  overlap?: "allow" | "buffer_one" | "cancel_previous" | "skip" | "terminate_previous";
  catch_up?: string;
  jitter?: number | null;
  pause?: boolean;
  queue?: string | null;
  key?: string | null;
  priority?: number;
  tags?: Record<string, string>;
  deadline?: number | null;
  max_concurrency?: number | null;
}

/** A schedule and its state. Durations are in seconds. */
export interface ScheduleItem {
  id: string;
  program: string;
  input: Value;
  every: number | null;
  cron: string | null;
  timezone: string;
  overlap: string;
  catch_up: string;
  jitter: number | null;
  paused: boolean;
  fired: number;
  skipped: number;
  failed: number;
  waiting: number;
  last_tick: string | null;
  next_tick: string | null;
  last_run: string | null;
  trouble: string | null;
  created_at: string;
  queue: string | null;
  key: string | null;
  priority: number;
  tags: Record<string, string>;
  deadline: number | null;
  max_concurrency: number | null;
}

/** All schedules, by id. */
export interface Schedules {
  schedules: ScheduleItem[];
}

/** Who is signed in, and until when. */
export interface Session {
  name: string;
  expires_at: string | null;
}

/** A token, to be exchanged for a cookie. */
export interface SessionBody {
  token: string;
}

/** The payload of a signal. `signal_id` deduplicates it, as an Idempotency-Key does. */
export interface SignalBody {
  payload?: Value;
  signal_id?: string | null;
}

/** A function: its file, its first line, its name, and its text. */
export interface SourcePart {
  file: string;
  line: number;
  name: string;
  text: string;
}

/** The code of a run, and where it is in that. */
export interface SourceView {
  parts: SourcePart[];
  executed: Record<string, Record<string, number>> | null;
  tasks: TaskItem[] | null;
  values: Record<string, Value> | null;
  problem: string | null;
}

/** The program to start, its arguments and options. */
export interface StartBody {
  program: string;
  args?: Value[];
  kwargs?: Record<string, Value>;
  id?: string | null;
  reuse?: "allow_if_failed" | "reject_duplicate" | "return_existing" | "terminate_running" | null;
  queue?: string | null;
  key?: string | null;
  priority?: number;
  delay?: number | null;
  deadline?: number | null;
  tags?: Record<string, string>;
}

/** A run that was started, or existed already. */
export interface Started {
  id: string;
  run_id: string;
  status: RunStatus | null;
  forked_from: string | null;
  duplicate: boolean;
}

/** The end of a stream of chunks. */
export interface StreamEnd {
  status: RunStatus;
}

/** A task under way: what it waits for, and its functions, the innermost last. */
export interface TaskItem {
  program: string;
  task: string;
  waits_for: string;
  frames: FrameItem[];
}

/** The step to go back to, and its new arguments. */
export interface TravelBody {
  step: string;
  inputs?: Record<string, Value> | null;
  new_id?: string | null;
}

/** The id of the run that was started. `duplicate`: the same request had come before, and counts once. */
export interface Triggered {
  id: string;
  duplicate: boolean;
}

/** Which runs are checked. */
export interface UpgradeBody {
  sample?: number | null;
}

/** A capsule that can be viewed: use `run` in place of a run_id, until the server drops it. */
export interface Viewed {
  run: string;
}

/** A wait of a run. */
export interface WaitItem {
  path: string;
  kind: string;
  deadline: string | null;
  source: string;
  name: string;
  request: Value;
  schema: Value;
  approvers: string[];
}

/** Why a run makes no progress, or how it ended. `until`: when that changes by itself. */
export interface WhyItem {
  kind: string;
  text: string;
  until: string | null;
}
