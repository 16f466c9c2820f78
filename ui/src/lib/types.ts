// Made from the OpenAPI document by `make ui`.

/** JSON of users: text, numbers, lists, objects. */
export type Value = any;

/** An answer. Who gives it is who is logged in. */
export interface AnswerBody {
  payload?: Value;
  approval_id?: string | null;
}

/** A question that is open. */
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

/** Open questions, the oldest first. */
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

/** From which time, until before which. */
export interface BackfillBody {
  start: string;
  end: string;
}

/** The ids of the runs that start, for each tick. */
export interface Backfilled {
  ids: string[];
}

/** The runs that ended in one bucket, by status. */
export interface BucketItem {
  at: string;
  counts: Record<string, number>;
}

/** What is done to which runs: `ids`, or those that match a filter. */
export interface BulkBody {
  action: "cancel" | "pause" | "resume" | "retry" | "signal";
  ids?: string[] | null;
  filter?: BulkFilter | null;
  options?: BulkOptions;
  dry_run?: boolean;
}

/** A run for which it failed, and why. */
export interface BulkFailure {
  id: string;
  error: string;
}

/** Which runs: as the parameters of the list of runs. */
export interface BulkFilter {
  status: string[];
  program: string | null;
  tags: Record<string, string>;
  queue: string | null;
  owner: string | null;
  parent: string | null;
  root: string | null;
  q: string | null;
  since: string | null;
  until: string | null;
}

/** What has become of many runs. `id` is that of the run which does it; null for a dry run. */
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

/** What the action takes: a reason for `cancel` and `pause`; name, payload and signal_id for `signal`. */
export interface BulkOptions {
  reason: string | null;
  name: string | null;
  payload: Value;
  signal_id: string | null;
}

/** Which runs have changed. */
export interface ChangedItem {
  run_ids: string[];
  more: boolean;
}

/** What was looked at, how it stands, and what to do about it. */
export interface CheckItem {
  name: string;
  verdict: "fail" | "ok" | "warn";
  found: string;
  fix: string;
}

/** A run, and whether it fits the code of this server: a line of an upgrade check. */
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

/** Something that a step emitted. `restart`: what it emitted before is void. */
export interface ChunkItem {
  index: number;
  path: string;
  value: Value;
  attempt: number;
  restart: boolean;
}

/** How many runs. `bounded`: at least so many; counting stops at 100,000 of a program and status. */
export interface CountItem {
  status: string | null;
  program: string | null;
  count: number;
  bounded: boolean;
}

/** How many runs there are. `at` is when they were counted: an answer is kept for 2 seconds. */
export interface Counts {
  counts: CountItem[];
  at: string;
}

/** The code that `perdure dev` executes, and what became of the last edit. */
export interface DevState {
  module: string;
  status: "broken" | "checking" | "held" | "live";
  since: string;
  problem: string;
  checked: number;
  runs: CheckedRun[];
}

/** Two runs side by side. `first` is the first op that differs; `takes` is where it has its values from in each. */
export interface Diff {
  a: string;
  b: string;
  first: string | null;
  added: string[];
  removed: string[];
  takes: string[] | null;
  ops: DiffItem[];
}

/** An op in two runs. `changes` are the fields that differ: none, where it is the same in both. */
export interface DiffItem {
  path: string;
  changes: string[];
  a: DiffSide | null;
  b: DiffSide | null;
}

/** An op in one run. Large values are left out: `bytes` is how many there are. */
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

/** What came of it. `duplicate`: it had come before, and counts once. */
export interface Done {
  answer: "accepted" | "duplicate" | "finished" | "not_found";
  duplicate: boolean;
  status: RunStatus | null;
  again: string[];
}

/** Nothing. */
export interface EmptyBody {
}

/** An error in a line. */
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

/** An error with its traceback, what caused it, and the exceptions of a group. */
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

/** Where and with what a fork begins; see `Engine.fork`. */
export interface ForkBody {
  at?: string | number | null;
  values?: Record<string, Value> | null;
  inputs?: Record<string, Value> | null;
  state?: Record<string, Value> | null;
  new_id?: string | null;
}

/** A function that has not returned: its line, and its variables as text. */
export interface FrameItem {
  function: string;
  source: string;
  variables: Record<string, string>;
}

/** What leads from one node to another. `taken`: the run went this way. */
export interface GraphEdge {
  source: string;
  target: string;
  label: string;
  link: "gate" | "loop" | "order" | "value";
  taken: boolean;
}

/** A node of a graph. `within` is the node of the nested graph that it is in, where that is open. */
export interface GraphNode {
  id: string;
  label: string;
  shape: "child" | "gate" | "input" | "map" | "question" | "step";
  status: string;
  path: string;
  within: string | null;
}

/** A graph, to be laid out. */
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

/** Items that have begun, in order. `next` is the `start` of the page after it. */
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

/** For whom an answering link is, and for how many seconds. */
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

/** Who is asking, what they may do, and what this server has. */
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

/** The next times at which a schedule fires, with jitter. */
export interface NextTicks {
  next: string[];
}

/** An event that says all by its name. */
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
  ended: number | null;
}

/** An orchestrator that is alive, or that still owns runs which another one has to take over. */
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

/** A queue with its runs by key. `bounded`: only its newest 1,000 open runs were looked at. */
export interface QueueDetail {
  queue: QueueItem;
  keys: QueueKey[];
  bounded: boolean;
  next: RunItem[];
}

/** A queue in numbers. `oldest` is how many seconds its longest waiting run has waited. */
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

/** What a queue allows: so many at once, so many of a key, and `rate` starts in `rate_seconds`. */
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

/** Why. */
export interface ReasonBody {
  reason?: string | null;
}

/** A refusal. */
export interface RejectBody {
  reason?: string | null;
  approval_id?: string | null;
}

/** How a parked run goes on, or ends; without anything it is tried again. */
export interface ResolveBody {
  version?: string | null;
  fail?: string | null;
  before?: string | null;
}

/** A run as it stands. What follows `failure` comes from its journal, and is null where that was left out. */
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

/** A run as a list has it, without its values. */
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
}

/** What to start, and when. Lengths of time are in seconds. */
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

/** A schedule as it is now. Lengths of time are in seconds. */
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

/** A token, to be swapped for a cookie. */
export interface SessionBody {
  token: string;
}

/** What to send. `signal_id` deduplicates it, as the Idempotency-Key does. */
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

/** The code of a run, and where it stands. */
export interface SourceView {
  parts: SourcePart[];
  executed: Record<string, Record<string, number>> | null;
  tasks: TaskItem[] | null;
  values: Record<string, Value> | null;
  problem: string | null;
}

/** What to start. */
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

/** A run that was started, or existed. */
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

/** A task that is not done: what it waits for, and its functions, the innermost last. */
export interface TaskItem {
  program: string;
  task: string;
  waits_for: string;
  frames: FrameItem[];
}

/** To which step to go back, and with which arguments. */
export interface TravelBody {
  step: string;
  inputs?: Record<string, Value> | null;
  new_id?: string | null;
}

/** The id of the run that starts. */
export interface Triggered {
  id: string;
}

/** Which runs are checked. */
export interface UpgradeBody {
  sample?: number | null;
}

/** A capsule that can be looked at: at `run`, in place of a run_id, until the server forgets it. */
export interface Viewed {
  run: string;
}

/** Something that a run waits for. */
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

/** Why a run makes no progress, or how it ended. `until`: when the reason goes away by itself. */
export interface WhyItem {
  kind: string;
  text: string;
  until: string | null;
}
