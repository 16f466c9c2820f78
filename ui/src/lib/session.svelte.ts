/** Who looks, and what they may do: read once, and again when the server has been away. */
import { get } from "./api";
import { now } from "./time.svelte";
import type { Me } from "./types";

class Session {
  me = $state.raw<Me | null>(null);

  async read(): Promise<void> {
    const began = Date.now();
    const me = await get<Me>("me");
    this.me = me;
    // Half of the way there and back is the answer's.
    if (Date.now() - began < 2000) now.synchronise(me.time);
  }

  may(what: string): boolean {
    return this.me?.may.includes(what) ?? false;
  }

  has(feature: string): boolean {
    return this.me?.features.includes(feature) ?? false;
  }
}

export const session = new Session();
