'use strict';
// The Node peer of the interop tests. Its command line and its output are those of every other peer
// (tests/interop/README.md). This client chooses queues by itself and knows synchronous sends only.

const httpclient = require('urllib');
const { Consumer, Message, Producer } = require('ali-ons');
const { parseArgs } = require('node:util');

const text = (fallback) => ({ type: 'string', default: fallback });
const { values: options, positionals: [ command ] } = parseArgs({
  allowPositionals: true,
  options: {
    namesrv: text(''), topic: text(''), group: text('peers'), modes: text('sync'), mode: text('concurrent'),
    prefix: text('m'), producer: text('node'), tag: text('*'), sql: text(''), property: text(''),
    'delay-level': text('0'), 'deliver-in-ms': text('0'), 'sharding-key': text(''), broadcast: text('no'), keys: text('no'), 'reject-first': text('no'), count: text('0'),
    'access-key': text('interop'), 'secret-key': text('interop'),
    queues: text('8'), 'interval-ms': text('0'), 'retry-seconds': text('0'), timeout: text('60'),
  },
});
const number = (name) => Number(options[name]);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const say = (fields) => process.stdout.write(JSON.stringify(fields) + '\n');
const quiet = { debug() {}, info() {}, warn() {}, error() {} };
const common = {
  httpclient, nameSrv: options.namesrv, logger: quiet,
  accessKeyId: options['access-key'], accessKeySecret: options['secret-key'], // mandatory in this client
};

/** Tries until it succeeds or --retry-seconds have passed: a killed broker comes back. */
async function insist(sequence, attempt) {
  const deadline = Date.now() + number('retry-seconds') * 1000;
  for (;;) {
    try {
      return await attempt();
    } catch (cause) {
      say({ fail: sequence, error: String(cause) });
      if (Date.now() >= deadline) return false;
      await sleep(200);
    }
  }
}

async function produce() {
  const producer = new Producer({ ...common, producerGroup: options.group, retryTimesWhenSendFailed: 0 });
  producer.on('error', () => {}); // each send reports its own failure
  await producer.ready();
  let failed = 0;
  for (let i = 0; i < number('count'); i++) {
    const body = `${options.prefix}-${options.producer}-${i}`;
    const acknowledged = await insist(i, async () => {
      const message = new Message(options.topic, options.tag === '*' ? '' : options.tag, body);
      if (options.keys === 'yes') message.keys = [ body ];
      if (options.property) message.properties[options.property] = String(i);
      if (options['sharding-key']) message.shardingKey = options['sharding-key'];
      if (number('delay-level')) message.delayTimeLevel = number('delay-level');
      const deliverAt = Date.now() + number('deliver-in-ms');
      if (number('deliver-in-ms')) message.setStartDeliverTime(deliverAt);
      const result = await producer.send(message);
      if (result.sendStatus !== 'SEND_OK') throw new Error(result.sendStatus);
      say({
        ack: i, mode: 'sync', id: result.msgId, offsetId: result.msgId,
        queue: Number(result.messageQueue.queueId), offset: result.queueOffset, deliverAt,
      });
      return true;
    });
    if (!acknowledged) failed++;
    if (number('interval-ms')) await sleep(number('interval-ms'));
  }
  say({ done: number('count'), failed });
}

async function consume() {
  const consumer = new Consumer({
    ...common, consumerGroup: options.group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    rebalanceInterval: 1000, // it does not listen to the broker's notice that members changed
    pullThresholdForQueue: 100000, // past this it sleeps for five seconds
    isBroadcast: options.broadcast === 'yes',
  });
  consumer.on('error', () => {});
  const seen = new Set();
  const count = number('count');
  const enough = new Promise((resolve) => {
    process.once('SIGTERM', resolve);
    setTimeout(resolve, number('timeout') * 1000);
    const wanted = options.sql ? { expressionType: 'SQL92', subString: options.sql } : options.tag;
    consumer.subscribe(options.topic, wanted, async (message) => {
      if (options['reject-first'] === 'yes' && message.reconsumeTimes === 0) return Consumer.ACTION_RETRY;
      const body = message.body.toString();
      say({
        queue: message.queueId, offset: Number(message.queueOffset), body, keys: message.keys,
        id: message.msgId, reconsume: message.reconsumeTimes,
      });
      seen.add(body);
      if (count && seen.size >= count) resolve();
    });
  });
  await consumer.ready();
  say({ ready: 1 });
  await enough;
  await sleep(300); // the last handler returns, so that its offset is among those stored
  await consumer.close();
}

({ produce, consume })[command]().then(() => process.exit(0), (cause) => {
  console.error(cause);
  process.exit(1);
});
