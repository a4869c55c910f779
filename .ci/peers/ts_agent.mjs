// The scripted agent of the peer gate on the official TypeScript SDK: node ts_agent.mjs v1 | v2 | router
import { join } from "node:path";
import { Readable, Writable } from "node:stream";
import { asItCame, sdk } from "./sdk.mjs";

const sessions = new Map(); // id -> { cwd, model, log: updates to replay, stop: AbortController | null }
const notes = [];
let count = 0;

const options = (session) => [{
  [session.two ? "configId" : "id"]: "model", name: "Model", type: "select", currentValue: session.model,
  options: [{ value: "small", name: "Small" }, { value: "big", name: "Big" }],
}];
const text = (words) => ({ type: "text", text: words });

function known(acp, sessionId) {
  const session = sessions.get(sessionId);
  if (!session) throw acp.RequestError.sessionNotFound(sessionId);
  return session;
}

/** What a turn says, on either version; returns the stop reason. */
async function turn(acp, two, session, sessionId, prompt, client) {
  const m = acp.methods.client;
  const words = prompt.map((block) => block.text ?? "").join("");
  const stop = (session.stop = new AbortController());
  const send = (update) => client.notify(m.session.update, { sessionId, update });
  const told = async (update) => { session.log.push(update); await send(update); };
  const messageId = `answer-${++count}`;
  const chunk = (kind, id, words) => told({ sessionUpdate: kind, content: text(words), ...(two ? { messageId: id } : {}) });
  const say = (words) => chunk("agent_message_chunk", messageId, words);
  if (words === "slow") {
    while (!stop.signal.aborted) {
      await say("tick ");
      await new Promise((done) => setTimeout(done, 50));
    }
    return "cancelled";
  }
  if (words === "fail") throw new acp.RequestError(-32603, "told to fail", { why: "the prompt" });
  if (words !== "everything") {
    await say("You said: " + words);
    return "end_turn";
  }
  const path = join(session.cwd, "notes.txt");
  await chunk("agent_thought_chunk", `thought-${count}`, "thinking");
  await say("Hello, ");
  await say("world. ");
  const entries = [
    { content: "look", priority: "high", status: "completed" },
    { content: "edit", priority: "medium", status: "in_progress" },
  ];
  await send(two ? { sessionUpdate: "plan_update", plan: { type: "items", planId: "plan", entries } }
    : { sessionUpdate: "plan", entries });
  const toolCallId = `tool-${count}`;
  const patch = `diff --git ${path} ${path}\n--- ${path}\n+++ ${path}\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n`;
  const diff = two ? { type: "diff", changes: [{ operation: "modify", path }], patch: { format: "git_patch", text: patch } }
    : { type: "diff", path, oldText: "one\ntwo\n", newText: "one\n2\n" };
  await send({
    sessionUpdate: two ? "tool_call_update" : "tool_call", toolCallId, title: "Edit notes", kind: "edit",
    status: "pending", locations: [{ path, line: 1 }], rawInput: { path }, content: [diff],
  });
  const choices = [
    { optionId: "yes", name: "Allow", kind: "allow_once" }, { optionId: "no", name: "Reject", kind: "reject_once" },
  ];
  const toolCall = { toolCallId, title: "Edit notes" };
  if (two) await send({ sessionUpdate: "state_update", state: "requires_action" });
  const { outcome } = await client.request(m.session.requestPermission, two
    ? { sessionId, title: "Edit notes", subject: { type: "tool_call", toolCall }, options: choices }
    : { sessionId, toolCall, options: choices });
  if (two) await send({ sessionUpdate: "state_update", state: "running" });
  await say(outcome.optionId === "yes" ? "allowed. " : "refused. ");
  await send({ sessionUpdate: "tool_call_update", toolCallId, status: "in_progress" });
  if (!two) {
    const read = await client.request(m.fs.readTextFile, { sessionId, path, line: 2, limit: 1 });
    await say(`read ${read.content.trim()}. `);
    await client.request(m.fs.writeTextFile, { sessionId, path: join(session.cwd, "out.txt"), content: "written\n" });
    const { terminalId } = await client.request(m.terminal.create, {
      sessionId, command: "sh", args: ["-c", "echo $GREETING; exit 3"], cwd: session.cwd,
      env: [{ name: "GREETING", value: "hi" }], outputByteLimit: 1000,
    });
    await send({ sessionUpdate: "tool_call_update", toolCallId, content: [diff, { type: "terminal", terminalId }] });
    const exited = await client.request(m.terminal.waitForExit, { sessionId, terminalId });
    const output = await client.request(m.terminal.output, { sessionId, terminalId });
    await client.request(m.terminal.release, { sessionId, terminalId });
    await say(`terminal ${output.output.trim()} ${exited.exitCode}. `);
  }
  await send({ sessionUpdate: "tool_call_update", toolCallId, status: "completed", rawOutput: { ok: true } });
  const form = await client.request(m.elicitation.create, {
    sessionId, mode: "form", message: "Who are you?",
    requestedSchema: { type: "object", properties: { name: { type: "string", title: "Name" } }, required: ["name"] },
  });
  await say(`name ${form.content.name}. `);
  await say(`asked ${(await client.request("_script/ask", { n: 1 })).n}. `);
  await client.notify("_script/told", { n: 3 });
  await send({ sessionUpdate: "_script_update", x: { y: [1, null, "z"] } });
  await send({ sessionUpdate: "usage_update", used: 10, size: 1000 });
  await say("Done.");
  return "end_turn";
}

/** What both versions share. */
function common(app, acp, two) {
  const m = acp.methods.agent;
  return app
    .onRequest(m.session.new, ({ params, client }) => {
      const sessionId = `session-${++count}`;
      const session = { two, cwd: params.cwd, model: "small", log: [], stop: null };
      sessions.set(sessionId, session);
      const command = { name: "again", description: "do it again" };
      if (two) {
        return { sessionId, configOptions: options(session),
          availableCommands: [{ type: "command", ...command, input: { type: "text", hint: "what" } }] };
      }
      setTimeout(() => client.notify(acp.methods.client.session.update, {
        sessionId, update: { sessionUpdate: "available_commands_update", availableCommands: [{ ...command, input: { hint: "what" } }] },
      }), 5);
      return { sessionId, configOptions: options(session) };
    })
    .onRequest(m.session.setConfigOption, ({ params }) => {
      const session = known(acp, params.sessionId);
      session.model = params.value;
      return { configOptions: options(session) };
    })
    .onRequest(m.session.list, ({ params }) => ({
      sessions: [...sessions].filter(([, s]) => !params.cwd || s.cwd === params.cwd).map(([sessionId, s]) => ({ sessionId, cwd: s.cwd })),
    }))
    .onRequest(m.session.resume, async ({ params, client }) => {
      const session = known(acp, params.sessionId);
      const send = (update) => client.notify(acp.methods.client.session.update, { sessionId: params.sessionId, update });
      for (const update of params.replayFrom ? session.log : []) await send(update);
      if (two) await send({ sessionUpdate: "state_update", state: "idle" });
      return { configOptions: options(session) };
    })
    .onRequest(m.session.close, ({ params }) => {
      sessions.get(params.sessionId)?.stop?.abort();
      sessions.delete(params.sessionId);
      return {};
    })
    .onNotification(m.session.cancel, ({ params }) => { sessions.get(params.sessionId)?.stop?.abort(); })
    .onRequest("_script/double", asItCame, ({ params }) => ({ n: 2 * params.n }))
    .onRequest("_script/notes", asItCame, () => ({ notes }))
    .onNotification("_script/note", asItCame, ({ params }) => { notes.push(params.text); });
}

async function one() {
  const acp = await sdk("v1");
  const m = acp.methods.agent;
  return common(acp.agent({ name: "script" }), acp, false)
    .onRequest(m.initialize, () => ({
      protocolVersion: 1, agentInfo: { name: "script", title: "The script", version: "1" }, authMethods: [],
      agentCapabilities: { loadSession: true, sessionCapabilities: { list: {}, resume: {}, close: {} } },
    }))
    .onRequest(m.session.load, async ({ params, client }) => {
      const session = known(acp, params.sessionId);
      for (const update of session.log) await client.notify(acp.methods.client.session.update, { sessionId: params.sessionId, update });
      return { configOptions: options(session) };
    })
    .onRequest(m.session.prompt, async ({ params, client }) => {
      const session = known(acp, params.sessionId);
      for (const content of params.prompt) session.log.push({ sessionUpdate: "user_message_chunk", content });
      return { stopReason: await turn(acp, false, session, params.sessionId, params.prompt, client) };
    });
}

async function two() {
  const acp = await sdk("v2");
  const m = acp.methods.agent;
  return common(acp.agent({ name: "script" }), acp, true)
    .onRequest(m.initialize, () => ({
      protocolVersion: 2, info: { name: "script", title: "The script", version: "1" }, capabilities: { session: {} },
    }))
    .onRequest(m.session.prompt, ({ params, client }) => {
      const session = known(acp, params.sessionId);
      const messageId = `prompt-${++count}`;
      const send = (update) => client.notify(acp.methods.client.session.update, { sessionId: params.sessionId, update });
      const echo = { sessionUpdate: "user_message", messageId, content: params.prompt };
      session.log.push(echo);
      setImmediate(async () => {
        await send(echo);
        await send({ sessionUpdate: "state_update", state: "running" });
        const end = await turn(acp, true, session, params.sessionId, params.prompt, client).then(
          (stopReason) => ({ stopReason }),
          (error) => ({ stopReason: "error", error: { code: error.code ?? -32603, message: error.message, data: error.data } }));
        await send({ sessionUpdate: "state_update", state: "idle", ...end });
      });
      return { messageId };
    });
}

const stream = (acp) => acp.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin));
const kind = process.argv[2];
if (kind === "router") {
  const acp = await sdk("v2");
  await acp.agentProtocolRouter().withV1(await one()).withV2(await two()).connect(stream(acp)).closed;
} else {
  await (kind === "v1" ? await one() : await two()).connect(stream(await sdk(kind))).closed;
}
