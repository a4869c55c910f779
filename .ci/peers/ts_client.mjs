// The conversation of the peer gate from a client's side, on the official TypeScript SDK:
//   node ts_client.mjs v1 | v2  FOLDER  AGENT-COMMAND...
// Prints a JSON array a step: its name, and true or what was seen instead.
import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Readable, Writable } from "node:stream";
import { isDeepStrictEqual } from "node:util";
import { asItCame, sdk } from "./sdk.mjs";

const [kind, folder, command, ...args] = process.argv.slice(2);
const two = kind === "v2";
const acp = await sdk(kind);
const m = acp.methods;
const agent = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
const terminals = [];
let updates = [], permissions = [], forms = [], asked = [], told = [], waiting = [];

const check = (step, seen, wanted) => console.log(JSON.stringify([step, isDeepStrictEqual(seen, wanted) || { seen, wanted }]));
const text = (words) => ({ type: "text", text: words });
const until = async (holds) => {
  while (!holds()) await new Promise((done) => { waiting.push(done); setTimeout(done, 200); });
};
const said = (kind) => updates.filter((u) => u.sessionUpdate === kind).map((u) => u.content.text).join("");

const client = acp.client({ name: "peer" })
  .onNotification(m.client.session.update, ({ params }) => {
    updates.push(params.update);
    for (const wake of waiting.splice(0)) wake();
  })
  .onRequest(m.client.session.requestPermission, ({ params }) => {
    permissions.push(params);
    return { outcome: { outcome: "selected", optionId: params.options.find((option) => option.kind === "allow_once").optionId } };
  })
  .onRequest(m.client.elicitation.create, ({ params }) => {
    forms.push(params);
    return { action: "accept", content: { name: "Ada" } };
  })
  .onRequest("_script/ask", asItCame, ({ params }) => { asked.push(params); return { n: params.n + 1 }; })
  .onNotification("_script/told", asItCame, ({ params }) => { told.push(params); });
if (!two) {
  client
    .onRequest(m.client.fs.readTextFile, ({ params }) => {
      const lines = readFileSync(params.path, "utf8").split("\n");
      return { content: lines.slice(params.line - 1, params.line - 1 + params.limit).join("\n") + "\n" };
    })
    .onRequest(m.client.fs.writeTextFile, ({ params }) => { writeFileSync(params.path, params.content); return {}; })
    .onRequest(m.client.terminal.create, ({ params }) => {
      const environment = { ...process.env, ...Object.fromEntries(params.env.map((each) => [each.name, each.value])) };
      const terminal = { output: "", process: spawn(params.command, params.args, { cwd: params.cwd, env: environment }) };
      terminal.process.stdout.on("data", (data) => { terminal.output += data; });
      terminal.ended = new Promise((done) => terminal.process.on("close", (exitCode) => done({ exitCode })));
      return { terminalId: String(terminals.push(terminal) - 1) };
    })
    .onRequest(m.client.terminal.waitForExit, ({ params }) => terminals[params.terminalId].ended)
    .onRequest(m.client.terminal.output, ({ params }) => ({ output: terminals[params.terminalId].output, truncated: false }))
    .onRequest(m.client.terminal.release, () => ({}));
}

await client.connectWith(acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout)), async (ctx) => {
  const me = { name: "peer", version: "1" };
  const hello = await ctx.request(m.agent.initialize, two
    ? { protocolVersion: 2, info: me, capabilities: { elicitation: { form: {} } } }
    : { protocolVersion: 1, clientInfo: me,
      clientCapabilities: { fs: { readTextFile: true, writeTextFile: true }, terminal: true, elicitation: { form: {} } } });
  check("initialize", [hello.protocolVersion, (hello.info ?? hello.agentInfo).name], [two ? 2 : 1, "script"]);
  const made = await ctx.request(m.agent.session.new, { cwd: folder, mcpServers: [] });
  const { sessionId } = made;
  const chosen = (options) => options.map((option) => [option.configId ?? option.id, option.currentValue]);
  const commands = () => made.availableCommands ?? updates.find((u) => u.sessionUpdate === "available_commands_update")?.availableCommands;
  await until(commands);
  check("new", chosen(made.configOptions), [["model", "small"]]);
  check("commands", commands().map((each) => each.name), ["again"]);

  /** A whole turn; returns its stop reason, or throws its error. */
  const prompt = async (words, during = () => {}) => {
    updates = [];
    const answer = ctx.request(m.agent.session.prompt, { sessionId, prompt: [text(words)] });
    during();
    if (!two) return (await answer).stopReason;
    await answer;
    const end = () => updates.find((u) => u.sessionUpdate === "state_update" && u.state === "idle" && u.stopReason);
    await until(end);
    if (end().stopReason === "error") throw end().error;
    return end().stopReason;
  };

  const reason = await prompt("everything");
  const answer = said("agent_message_chunk");
  check("turn", [reason, answer.endsWith("Done.")], ["end_turn", true]);
  check("thought", said("agent_thought_chunk"), "thinking");
  check("chunks", answer.startsWith("Hello, world. "), true);
  const plan = updates.find((u) => u.sessionUpdate === (two ? "plan_update" : "plan"));
  check("plan", (plan?.plan ?? plan)?.entries, [
    { content: "look", priority: "high", status: "completed" }, { content: "edit", priority: "medium", status: "in_progress" }]);
  const calls = updates.filter((u) => u.sessionUpdate.startsWith("tool_call"));
  check("tool", [calls[0].title, calls[0].kind, calls[0].status, calls.filter((call) => call.status).at(-1).status,
    new Set(calls.map((call) => call.toolCallId)).size], ["Edit notes", "edit", "pending", "completed", 1]);
  const contents = calls.flatMap((call) => call.content ?? []);
  const diff = contents.find((content) => content.type === "diff");
  check("diff", two ? diff?.patch.text.includes("-two\n+2\n") : [diff?.oldText, diff?.newText],
    two ? true : ["one\ntwo\n", "one\n2\n"]);
  check("permission", [permissions.map((each) => each.title ?? each.toolCall.title), answer.includes("allowed. ")], [["Edit notes"], true]);
  if (!two) {
    check("files", [answer.includes("read two. "), readFileSync(join(folder, "out.txt"), "utf8")], [true, "written\n"]);
    check("terminal", [answer.includes("terminal hi 3. "), contents.some((content) => content.type === "terminal")], [true, true]);
  }
  check("elicitation", [answer.includes("name Ada. "), forms.map((form) => [form.mode, form.message, Object.keys(form.requestedSchema.properties)])],
    [true, [["form", "Who are you?", ["name"]]]]);
  check("ask", [answer.includes("asked 2. "), asked], [true, [{ n: 1 }]]);
  check("tell", told, [{ n: 3 }]);
  check("unknown", updates.filter((u) => u.sessionUpdate === "_script_update"), [{ sessionUpdate: "_script_update", x: { y: [1, null, "z"] } }]);

  const set = await ctx.request(m.agent.session.setConfigOption, two
    ? { sessionId, configId: "model", type: "id", value: "big" } : { sessionId, configId: "model", value: "big" });
  check("option", chosen(set.configOptions), [["model", "big"]]);
  check("cancel", await prompt("slow", async () => {
    await until(() => said("agent_message_chunk"));
    await ctx.notify(m.agent.session.cancel, { sessionId });
  }), "cancelled");
  await prompt("hello");
  check("second", said("agent_message_chunk"), "You said: hello");
  const failed = await prompt("fail").catch((error) => error);
  check("error", [failed.code, failed.message, failed.data], [-32603, "told to fail", { why: "the prompt" }]);
  const listed = async () => (await ctx.request(m.agent.session.list, { cwd: folder })).sessions.map((each) => each.sessionId);
  check("list", await listed(), [sessionId]);
  updates = [];
  const again = two
    ? await ctx.request(m.agent.session.resume, { sessionId, cwd: folder, mcpServers: [], replayFrom: { type: "start" } })
    : await ctx.request(m.agent.session.load, { sessionId, cwd: folder, mcpServers: [] });
  const replayed = updates.filter((u) => /^(user|agent)_message/.test(u.sessionUpdate))
    .flatMap((u) => [u.content].flat()).map((content) => content.text).join("");
  check("replay", [chosen(again.configOptions), replayed.startsWith("everythingHello, world. "), replayed.includes("helloYou said: hello")],
    [[["model", "big"]], true, true]);
  await ctx.request(m.agent.session.resume, { sessionId, cwd: folder, mcpServers: [] });
  await prompt("still there?");
  check("resume", said("agent_message_chunk"), "You said: still there?");
  check("double", await ctx.request("_script/double", { n: 21 }), { n: 42 });
  await ctx.notify("_script/note", { text: "hi" });
  check("note", await ctx.request("_script/notes", {}), { notes: ["hi"] });
  const nobody = await ctx.request(m.agent.session.prompt, { sessionId: "nobody", prompt: [text("hi")] }).catch((error) => error);
  check("nobody", nobody.code, -32002);
  await ctx.request(m.agent.session.close, { sessionId });
  check("close", await listed(), []);
});
agent.stdin.end();
await new Promise((done) => agent.on("exit", done));
process.exit(0);
