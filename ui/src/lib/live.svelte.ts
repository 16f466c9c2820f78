/**
 * What has changed, live: one stream for all tabs of the browser, held by one of them.
 *
 * Browsers open six connections to a server: a stream per tab would leave none for the seventh. The visible tab that holds the
 * lock listens, and says on a channel what it hears. A hidden tab neither listens nor asks; when it is seen again, it reads
 * everything anew.
 */
import { address } from "./api";

/** Runs that have changed; `all`: perhaps all of them. */
export interface Change {
  runs: Set<string>;
  all: boolean;
  /** What else the server said, by its name. */
  said?: { event: string; data: unknown };
}

type Listener = (change: Change) => void;
type Message = { kind: "joined" } | { kind: "changed"; runs: string[]; all: boolean } | { kind: "said"; event: string; data: unknown } | { kind: "connected"; connected: boolean };

const NAME = `perdure ${document.baseURI}`;
const EVENTS = ["hello", "changed", "reset", "dev"];

class Live {
  /** Whether some tab of this browser is connected. */
  connected = $state.raw(false);
  paused = $state.raw(false);
  /** How many changes have come since it was paused. */
  missed = $state.raw(0);

  #listeners = new Set<Listener>();
  #channel = new BroadcastChannel(NAME);
  #leave: (() => void) | null = null;
  #waiting: AbortController | null = null;

  constructor() {
    this.#channel.onmessage = (event: MessageEvent<Message>) => this.#hear(event.data);
    document.addEventListener("visibilitychange", () => this.#seen());
    addEventListener("pagehide", () => this.#rest());
    addEventListener("pageshow", (event) => event.persisted && this.#seen());
    this.#lead();
    this.#join();
  }

  listen(listener: Listener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  pause(): void {
    this.paused = true;
    this.missed = 0;
  }

  resume(): void {
    this.paused = false;
    this.#tell({ runs: new Set(), all: true });
  }

  /** Something was done here: show what came of it at once. */
  touch(...runs: string[]): void {
    this.#tell({ runs: new Set(runs), all: false });
  }

  #seen(): void {
    if (document.hidden) this.#rest();
    else {
      this.#lead();
      this.#join();
      if (!this.paused) this.#tell({ runs: new Set(), all: true });
    }
  }

  /** Ask the tab that listens whether it is connected. */
  #join(): void {
    this.#channel.postMessage({ kind: "joined" } satisfies Message);
  }

  #rest(): void {
    this.#leave?.();
    this.#waiting?.abort();
    this.#leave = this.#waiting = null;
  }

  #lead(): void {
    if (document.hidden || this.#leave || this.#waiting) return;
    if (!navigator.locks) {
      // Without a secure context there are no locks: each tab listens for itself.
      this.#leave = this.#connect();
      return;
    }
    const waiting = (this.#waiting = new AbortController());
    navigator.locks
      .request(NAME, { signal: waiting.signal }, () => {
        this.#waiting = null;
        const disconnect = this.#connect();
        return new Promise<void>((resolve) => {
          this.#leave = () => {
            disconnect();
            resolve();
          };
        });
      })
      .catch(() => undefined);
  }

  #connect(): () => void {
    const source = new EventSource(address("events"));
    const say = (message: Message) => {
      this.#channel.postMessage(message);
      this.#hear(message);
    };
    source.onopen = () => say({ kind: "connected", connected: true });
    source.onerror = () => say({ kind: "connected", connected: false });
    for (const event of EVENTS) {
      source.addEventListener(event, (message: MessageEvent<string>) => {
        const data = message.data ? (JSON.parse(message.data) as { run_ids?: string[]; more?: boolean }) : {};
        if (event === "changed") say({ kind: "changed", runs: data.run_ids ?? [], all: data.more ?? false });
        else if (event === "dev") say({ kind: "said", event, data });
        // What has happened before the stream began, or was missed, is in no message: all is read again.
        else say({ kind: "changed", runs: [], all: true });
      });
    }
    return () => {
      source.close();
      this.#channel.postMessage({ kind: "connected", connected: false } satisfies Message);
    };
  }

  #hear(message: Message): void {
    if (message.kind === "joined") {
      if (this.#leave && this.connected) this.#channel.postMessage({ kind: "connected", connected: true } satisfies Message);
      return;
    }
    if (message.kind === "connected") {
      this.connected = message.connected;
      return;
    }
    this.connected = true;
    if (document.hidden) return;
    if (message.kind === "said") {
      this.#tell({ runs: new Set(), all: false, said: message });
      return;
    }
    if (this.paused) this.missed += message.runs.length || 1;
    else this.#tell({ runs: new Set(message.runs), all: message.all });
  }

  #tell(change: Change): void {
    for (const listener of [...this.#listeners]) listener(change);
  }
}

export const live = new Live();
