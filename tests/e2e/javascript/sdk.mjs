// Runs one scenario of a JavaScript SDK against a server and prints what it saw as JSON.
// node sdk.mjs SCENARIO URL KEY MODEL
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [scenario, url, key, model] = process.argv.slice(2);
const HI = [{ role: "user", content: "Hi" }];
const WEATHER = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const PERSON = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"],
  additionalProperties: false,
};

const openai = (more = {}) => new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0, ...more });
const anthropic = (more = {}) => new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0, ...more });
const chat = (more, options) =>
  openai().chat.completions.create({ model, messages: HI, max_tokens: 500, temperature: 0, ...more }, options);
const message = (more, options) =>
  anthropic().messages.create({ model, messages: HI, max_tokens: 500, temperature: 0, ...more }, options);

async function streamedChat(more) {
  const seen = { content: "", reasoning: "", calls: [], finish: null, usage: null };
  const stream = await chat({ stream: true, stream_options: { include_usage: true }, ...more });
  for await (const chunk of stream) {
    seen.usage = chunk.usage ?? seen.usage;
    for (const { delta, finish_reason } of chunk.choices) {
      seen.content += delta.content ?? "";
      seen.reasoning += delta.reasoning_content ?? "";
      seen.finish = finish_reason ?? seen.finish;
      for (const part of delta.tool_calls ?? []) {
        if (part.id) seen.calls.push({ id: part.id, name: part.function.name, arguments: "" });
        seen.calls[part.index].arguments += part.function.arguments ?? "";
      }
    }
  }
  return seen;
}

async function kindOf(call) {
  try {
    await call();
    return "none";
  } catch (error) {
    return `${error.constructor.name} ${error.status} ${error.param ?? ""}`.trim();
  }
}

// Leaves after the first event.
async function leave(stream) {
  for await (const _ of stream) break;
  return "left";
}

const FUNCTION = { type: "function", function: { name: "get_weather", parameters: WEATHER } };
const TOOL = { name: "get_weather", input_schema: WEATHER };

const scenarios = {
  "openai plain": async () => {
    const { choices, usage } = await chat({});
    return { content: choices[0].message.content, finish: choices[0].finish_reason, usage };
  },
  "openai streaming": () => streamedChat({}),
  "openai tools": async () => {
    const whole = (await chat({ tools: [FUNCTION] })).choices[0];
    const [call] = whole.message.tool_calls;
    const turns = [...HI, whole.message, { role: "tool", tool_call_id: call.id, content: "21 °C" }];
    const next = (await chat({ messages: turns, tools: [FUNCTION] })).choices[0];
    return {
      whole: { content: whole.message.content, call: call.function, finish: whole.finish_reason },
      streamed: await streamedChat({ tools: [FUNCTION] }),
      next: next.message.tool_calls[0].function,
    };
  },
  "openai structured": async () => {
    const format = { type: "json_schema", json_schema: { name: "Person", schema: PERSON, strict: true } };
    const answer = await openai().chat.completions.parse({
      model, messages: HI, max_tokens: 60, temperature: 0, response_format: format,
    });
    return answer.choices[0].message.parsed ?? JSON.parse(answer.choices[0].message.content);
  },
  "openai reasoning": async () => {
    const { message: whole } = (await chat({})).choices[0];
    return { content: whole.content, reasoning: whole.reasoning_content, streamed: await streamedChat({}) };
  },
  "openai stops": async () => (await chat({ stop: ["END"] })).choices[0].message.content,
  "openai logprobs": async () => {
    const { content } = (await chat({ logprobs: true, top_logprobs: 2 })).choices[0].logprobs;
    return content.map(({ token, top_logprobs }) => [token, top_logprobs.length]);
  },
  "openai errors": async () => ({
    400: await kindOf(() => chat({ temperature: -1 })),
    401: await kindOf(() => openai({ apiKey: "wrong" }).models.list()),
    404: await kindOf(() => chat({ model: "gpt-9" })),
    streamed: await kindOf(() => chat({ temperature: -1, stream: true })),
  }),
  "openai busy": () => kindOf(() => chat({})),
  "openai retry": async () =>
    (await openai({ maxRetries: 1 }).chat.completions.create({ model, messages: HI })).choices[0].message.content,
  "openai leaving": async () => leave(await chat({ stream: true })),
  "openai embeddings": async () => {
    const { data } = await openai().embeddings.create({ model, input: ["Grüße 日本", "b"] });
    return data.map(({ embedding }) => [...embedding]);
  },
  "openai responses": async () => {
    const whole = await openai().responses.create({ model, input: "Hi", max_output_tokens: 500, temperature: 0 });
    const kept = await openai().responses.retrieve(whole.id);
    let text = "", last = "";
    const stream = await openai().responses.create({ model, input: "Hi", max_output_tokens: 500, temperature: 0, stream: true });
    for await (const event of stream) {
      last = event.type;
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    await openai().responses.delete(whole.id);
    const gone = await kindOf(() => openai().responses.retrieve(whole.id));
    return { whole: whole.output_text, kept: kept.output_text ?? kept.output.at(-1).content[0].text, text, last, gone };
  },
  "anthropic plain": async () => {
    const { content, stop_reason, usage } = await message({});
    return { text: content[0].text, stop: stop_reason, tokens: usage.output_tokens };
  },
  "anthropic streaming": async () => {
    let text = "";
    const stream = anthropic().messages.stream({ model, messages: HI, max_tokens: 500, temperature: 0 });
    stream.on("text", (part) => (text += part));
    const whole = await stream.finalMessage();
    return { text, whole: whole.content[0].text, stop: whole.stop_reason };
  },
  "anthropic tools": async () => {
    const whole = await message({ tools: [TOOL] });
    const use = whole.content.at(-1);
    const result = { role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: "21 °C" }] };
    const turns = [...HI, { role: "assistant", content: whole.content }, result];
    const next = await message({ messages: turns, tools: [TOOL] });
    const stream = anthropic().messages.stream({ model, messages: HI, max_tokens: 500, tools: [TOOL] });
    const streamed = (await stream.finalMessage()).content.at(-1);
    return { input: use.input, streamed: streamed.input, stop: whole.stop_reason, next: next.stop_reason };
  },
  "anthropic thinking": async () => {
    const { content } = await message({ thinking: { type: "enabled", budget_tokens: 200 } });
    return content.map(({ type, thinking, text }) => [type, thinking ?? text]);
  },
  "anthropic errors": async () => ({
    400: await kindOf(() => message({ temperature: -1 })),
    401: await kindOf(() => anthropic({ apiKey: "wrong" }).messages.create({ model, messages: HI, max_tokens: 1 })),
    404: await kindOf(() => message({ model: "claude-9" })),
  }),
  "anthropic stops": async () => {
    const { content, stop_reason, stop_sequence } = await message({ stop_sequences: ["END"] });
    return [content[0].text, stop_reason, stop_sequence];
  },
  "anthropic busy": () => kindOf(() => message({})),
  "anthropic leaving": async () => leave(await message({ stream: true })),
  "anthropic count": async () => {
    const { input_tokens } = await anthropic().messages.countTokens({ model, messages: HI });
    return [input_tokens, (await message({})).usage.input_tokens];
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
