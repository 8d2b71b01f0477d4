package main

import (
	"context"
	"log"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
)

// pull takes messages with a pull consumer until --count were taken, and acknowledges them.
func pull(o options) {
	c, err := rocketmq.NewPullConsumer(consuming(o)...)
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Subscribe(o.topic, selector(o)); err != nil {
		log.Fatal(err)
	}
	if err := c.Start(); err != nil {
		log.Fatal(err)
	}
	say(map[string]any{"ready": 1})
	ctx := context.Background()
	deadline := time.Now().Add(time.Duration(o.timeout) * time.Second)
	for taken := 0; taken < o.count && time.Now().Before(deadline); {
		some, err := c.Poll(ctx, time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		for _, m := range some.GetMsgList() {
			received(m)
			taken++
		}
		c.ACK(ctx, some, consumer.ConsumeSuccess)
	}
	if err := c.PersistOffset(ctx, o.topic); err != nil {
		log.Fatal(err)
	}
	if err := c.Shutdown(); err != nil {
		log.Fatal(err)
	}
}
