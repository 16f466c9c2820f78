/** Capsules that were dropped onto the page: shown by the server, which keeps them for a while, and stores nothing. */
import { upload } from "./api";
import type { RunDetail, Viewed } from "./types";

class Capsules {
  /** The files of this page, by the address that the server gave: sent again if it has forgotten one. */
  files = $state.raw(new Map<string, File>());

  async view(file: File): Promise<string> {
    const { run } = await upload<Viewed>("capsules/view", file);
    this.files = new Map(this.files).set(run, file);
    return run;
  }

  async import(address: string): Promise<RunDetail> {
    return upload<RunDetail>("capsules", this.files.get(address)!);
  }
}

export const capsules = new Capsules();
