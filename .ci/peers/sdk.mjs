// The official TypeScript SDK, from the node_modules that ACP_SDK names, by its public entries.
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const found = createRequire(join(process.env.ACP_SDK, "from.js"));

/** The SDK for "v1" or "v2". */
export function sdk(kind) {
  const entry = "@agentclientprotocol/sdk" + (kind === "v2" ? "/experimental/v2" : "");
  return import(pathToFileURL(found.resolve(entry)).href);
}

/** What the extension handlers take: anything, as it came. */
export const asItCame = (params) => params;
