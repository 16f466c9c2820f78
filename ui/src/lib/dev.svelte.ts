/** What `perdure dev` says about the code that is edited. */
import { get, post } from "./api";
import { live } from "./live.svelte";
import type { DevState } from "./types";

class Dev {
  state = $state.raw<DevState | null>(null);

  async read(): Promise<void> {
    this.state = await get<DevState>("dev");
  }

  begin(): () => void {
    void this.read();
    return live.listen((change) => {
      if (change.said?.event === "dev" || change.all) void this.read();
    });
  }

  /** An address that opens a line in the editor of this machine; none where the code is not edited. */
  editor(place: string): string | null {
    return this.state && `vscode://file${place.startsWith("/") ? "" : `${this.state.folder}/`}${place}`;
  }

  /** Take the edited code although runs do not fit it. */
  async take(): Promise<void> {
    await post("dev/take");
  }
}

export const dev = new Dev();
