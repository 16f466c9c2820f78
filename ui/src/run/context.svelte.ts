/** One run on its page: what it is, its ops, and what is open of its dialogs. Read in parts, and again when it changes. */
import { untrack } from "svelte";
import { address, get, Problem } from "../lib/api";
import { live } from "../lib/live.svelte";
import { Resource } from "../lib/resource.svelte";
import { session } from "../lib/session.svelte";
import { ended } from "../lib/status";
import type { OpDetail, Ops, RunDetail } from "../lib/types";
import { OpColumns } from "./ops";

export type Dialog =
  | { kind: "cancel" | "pause" | "resume" | "retry" }
  | { kind: "fork"; op?: OpDetail; seq?: number }
  | { kind: "signal"; name?: string }
  | { kind: "answer"; path: string };

// The first page is short, so that something is seen soon.
const FIRST = 4000, PAGE = 40_000;
// How often, in ms, the ops and the run are read at most: what a step did is on the page within 300 ms of its end, of which the
// server takes up to 150 to notice it.
const OPS_GAP = 75, RUN_GAP = 250;

export class RunContext {
  /** What it is asked for by: the run_id of its root, or the address of a capsule. */
  readonly id: string;
  readonly child: string;
  readonly about = new Resource<RunDetail>(RUN_GAP);
  readonly ops = new OpColumns();
  /** Grows whenever the ops do. */
  version = $state.raw(0);
  problem = $state.raw<Problem | null>(null);
  dialog = $state.raw<Dialog | null>(null);

  #reading = false;
  #wanted = false;
  #last = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #complete = false;
  #stale = false;
  #stopped = false;
  #deaf: () => void = () => undefined;

  constructor(id: string, child: string) {
    this.id = id;
    this.child = child;
  }

  get detail(): RunDetail | undefined {
    return this.about.data;
  }
  get isCapsule(): boolean {
    return this.id.startsWith("~");
  }
  get canTell(): boolean {
    return session.may("run") && !this.isCapsule;
  }
  /** Where a value is to be had as a file. */
  valueAddress(at: string): string {
    return address(`runs/${this.id}/values/${at}`, { ...this.query, download: true }).href;
  }
  get query(): { child: string } {
    return { child: this.child };
  }

  /** The number of the last event of an op; 0 if it is not known yet. */
  seqOf(path: string): number {
    void this.version;
    const at = this.ops.find(path);
    return at === undefined ? 0 : this.ops.seq[at]!;
  }

  begin(): () => void {
    untrack(() => {
      // At first without what takes a look into the journal, which may be long.
      let first = true;
      void this.about.load(async (signal) => {
        const path = `runs/${encodeURIComponent(this.id)}`;
        if (first) {
          first = false;
          this.about.data = await get<RunDetail>(path, { ...this.query, journal: "false" }, { signal });
        }
        return get<RunDetail>(path, this.query, { signal });
      });
      void this.#read();
      this.#deaf = live.listen((change) => {
        if (!change.all && !change.runs.has(this.id)) return;
        if (change.all && this.detail && ended(this.detail.status) && this.ops.ended !== null && !this.#stale && !change.runs.has(this.id)) return;
        this.again();
      });
    });
    return () => {
      this.#stopped = true;
      clearTimeout(this.#timer);
      this.#deaf();
      this.about.stop();
    };
  }

  /** Read what has changed, in a moment. */
  again(): void {
    this.about.soon();
    if (document.hidden) return;
    if (this.#reading) this.#wanted = true;
    else if (this.#timer === undefined) {
      this.#timer = setTimeout(() => {
        this.#timer = undefined;
        if (!document.hidden) void this.#read();
      }, Math.max(0, OPS_GAP - (performance.now() - this.#last)));
    }
  }

  open(dialog: Dialog): void {
    this.dialog = dialog;
  }

  async #read(): Promise<void> {
    if (this.#reading || this.#stopped) {
      this.#wanted = true;
      return;
    }
    this.#reading = true;
    this.#wanted = false;
    this.#last = performance.now();
    try {
      while (this.ops.rest !== null && !this.#stopped) {
        const after = this.ops.rest;
        this.ops.merge(await this.#page({ after, limit: after ? PAGE : FIRST }), false);
        this.version++;
        // Several pages are not of one moment.
        this.#stale = after > 0;
      }
      if (this.#complete) {
        const since = this.ops.nextSeq;
        const changed = await this.#page({ since, limit: PAGE });
        if (!this.#stopped && changed.next_seq !== since) {
          this.ops.merge(changed, true);
          this.version++;
        }
        this.#stale = changed.next !== null;
      }
      this.#complete = true;
      this.problem = null;
    } catch (error) {
      this.problem = error instanceof Problem ? error : new Problem(0, { detail: String(error) });
      if (this.problem.status === 0 || this.problem.status === 503) setTimeout(() => this.again(), 3000);
    } finally {
      this.#reading = false;
    }
    if ((this.#wanted || this.#stale) && !this.#stopped && !this.problem) this.again();
  }

  #page(query: Record<string, number>): Promise<Ops> {
    return get(`runs/${encodeURIComponent(this.id)}/ops`, { ...query, ...this.query }, { plain: true });
  }
}
