package main

import (
	"context"
	"log"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// patience is how long a question waits before it is asked again.
const patience = 2 * time.Second

// request asks --count questions, in --modes sync and async, and prints the answers.
func request(o options) {
	p, err := rocketmq.NewProducer(producing(o)...)
	if err != nil {
		log.Fatal(err)
	}
	if err := p.Start(); err != nil {
		log.Fatal(err)
	}
	a := &asker{options: o, producer: p}
	modes := strings.Split(o.modes, ",")
	for i, mode := range modes {
		for n := o.count * i / len(modes); n < o.count*(i+1)/len(modes); n++ {
			a.ask(mode, n)
		}
	}
	a.open.Wait()
	say(map[string]any{"done": o.count, "failed": a.failed})
	if err := p.Shutdown(); err != nil {
		log.Fatal(err)
	}
}

type asker struct {
	options
	producer rocketmq.Producer
	open     sync.WaitGroup
	lock     sync.Mutex
	failed   int
}

func (a *asker) ask(mode string, sequence int) {
	ctx, ttl := context.Background(), time.Duration(a.timeout)*time.Second
	if mode == "sync" {
		a.insist(ctx, ttl, sequence)
		return
	}
	a.open.Add(1)
	var once sync.Once // the client calls back twice: for the answer, and when it forgets the request
	answered := func(_ context.Context, m *primitive.Message, err error) {
		once.Do(func() {
			a.answered(mode, sequence, m, err)
			a.open.Done()
		})
	}
	if err := a.producer.RequestAsync(ctx, ttl, answered, a.message(sequence)); err != nil {
		answered(ctx, nil, err)
	}
}

// insist asks until it is answered: this client asks before its first heartbeat, and until then no
// broker knows where to send the answer, nor tells the replier.
func (a *asker) insist(ctx context.Context, ttl time.Duration, sequence int) {
	for deadline := time.Now().Add(ttl); ; {
		answer, err := a.producer.Request(ctx, patience, a.message(sequence))
		if err == nil || time.Now().After(deadline) {
			a.answered("sync", sequence, answer, err)
			return
		}
	}
}

func (a *asker) answered(mode string, sequence int, answer *primitive.Message, err error) {
	if err == nil {
		say(map[string]any{"answer": sequence, "mode": mode, "body": string(answer.Body)})
		return
	}
	a.lock.Lock()
	defer a.lock.Unlock()
	a.failed++
	say(map[string]any{"fail": sequence, "error": err.Error()})
}

// reply answers each message of the topic with "answer to" its body.
func reply(o options) {
	p, err := rocketmq.NewProducer(producing(o)...)
	if err != nil {
		log.Fatal(err)
	}
	if err := p.Start(); err != nil {
		log.Fatal(err)
	}
	c, err := rocketmq.NewPushConsumer(consuming(o)...)
	if err != nil {
		log.Fatal(err)
	}
	answer := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			message, err := consumer.CreateReplyMessage(m, nil)
			if err != nil {
				log.Fatal(err)
			}
			message.Body = []byte("answer to " + string(m.Body)) // the client leaves it empty
			if _, err := p.SendSync(ctx, message); err != nil {
				say(map[string]any{"fail": string(m.Body), "error": err.Error()})
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	if err := c.Subscribe(o.topic, selector(o), answer); err != nil {
		log.Fatal(err)
	}
	if err := c.Start(); err != nil {
		log.Fatal(err)
	}
	say(map[string]any{"ready": 1})
	wait(o, nil)
	if err := c.Shutdown(); err != nil {
		log.Fatal(err)
	}
	if err := p.Shutdown(); err != nil {
		log.Fatal(err)
	}
}
