package main

import (
	"context"
	"log"
	"sync"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// consume push-consumes until --count different bodies were seen (0: until it is told to stop).
func consume(o options) {
	c, err := rocketmq.NewPushConsumer(consuming(o)...)
	if err != nil {
		log.Fatal(err)
	}
	enough := make(chan struct{})
	if err := c.Subscribe(o.topic, selector(o), collector(o, enough)); err != nil {
		log.Fatal(err)
	}
	if err := c.Start(); err != nil {
		log.Fatal(err)
	}
	say(map[string]any{"ready": 1})
	wait(o, enough)
	if err := c.Shutdown(); err != nil {
		log.Fatal(err)
	}
}

func consuming(o options) []consumer.Option {
	wanted := []consumer.Option{
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{o.namesrv})),
		consumer.WithGroupName(o.group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(o.mode == "orderly"),
	}
	if o.broadcast == "yes" {
		wanted = append(wanted, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if o.accessKey != "" {
		wanted = append(wanted, consumer.WithCredentials(credentials(o)))
	}
	if o.trace == "yes" {
		wanted = append(wanted, consumer.WithTrace(tracing(o)))
	}
	return wanted
}

func selector(o options) consumer.MessageSelector {
	switch {
	case o.sql != "":
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: o.sql}
	case o.tag != "":
		return consumer.MessageSelector{Type: consumer.TAG, Expression: o.tag}
	}
	return consumer.MessageSelector{}
}

type listener = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func collector(o options, enough chan struct{}) listener {
	var lock sync.Mutex
	seen := map[string]bool{}
	return func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		for _, m := range messages {
			if o.rejectFirst == "yes" && m.ReconsumeTimes == 0 {
				return consumer.ConsumeRetryLater, nil
			}
			received(m)
			if o.count > 0 && len(seen) < o.count {
				if seen[string(m.Body)] = true; len(seen) == o.count {
					close(enough)
				}
			}
		}
		return consumer.ConsumeSuccess, nil
	}
}

func received(m *primitive.MessageExt) {
	say(map[string]any{"queue": m.Queue.QueueId, "offset": m.QueueOffset, "body": string(m.Body),
		"keys": m.GetKeys(), "id": m.MsgId, "reconsume": m.ReconsumeTimes})
}
