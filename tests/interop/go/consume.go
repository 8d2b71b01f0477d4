package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// consume push-consumes until --count different bodies were seen (0: until it is told to stop).
func consume(o options) {
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{o.namesrv})),
		consumer.WithGroupName(o.group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(o.mode == "orderly"))
	if err != nil {
		log.Fatal(err)
	}
	selector := consumer.MessageSelector{}
	if o.tag != "" {
		selector = consumer.MessageSelector{Type: consumer.TAG, Expression: o.tag}
	}
	enough := make(chan struct{})
	if err := c.Subscribe(o.topic, selector, collector(o, enough)); err != nil {
		log.Fatal(err)
	}
	if err := c.Start(); err != nil {
		log.Fatal(err)
	}
	say(map[string]any{"ready": 1})
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	select {
	case <-enough:
		time.Sleep(300 * time.Millisecond) // the last listener returns, its offset is stored too
	case <-told:
	case <-time.After(time.Duration(o.timeout) * time.Second):
	}
	if err := c.Shutdown(); err != nil {
		log.Fatal(err)
	}
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
			say(map[string]any{"queue": m.Queue.QueueId, "offset": m.QueueOffset, "body": string(m.Body),
				"keys": m.GetKeys(), "id": m.MsgId, "reconsume": m.ReconsumeTimes})
			if o.count > 0 && len(seen) < o.count {
				if seen[string(m.Body)] = true; len(seen) == o.count {
					close(enough)
				}
			}
		}
		return consumer.ConsumeSuccess, nil
	}
}
