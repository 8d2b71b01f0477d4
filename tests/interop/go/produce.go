package main

import (
	"context"
	"fmt"
	"log"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const (
	batchSize   = 32
	asyncWindow = 128
)

// bySequence sends message n of a topic to queue n mod queues; the number travels beside the message,
// in the order of the sends, because a batch reaches the selector without its properties.
type bySequence struct {
	sync.Mutex
	next int
}

func (s *bySequence) Select(
	_ *primitive.Message, queues []*primitive.MessageQueue, _ string,
) *primitive.MessageQueue {
	s.Lock()
	defer s.Unlock()
	for _, queue := range queues {
		if queue.QueueId == s.next%len(queues) {
			return queue
		}
	}
	return nil
}

func (s *bySequence) set(sequence int) {
	s.Lock()
	defer s.Unlock()
	s.next = sequence
}

type sender struct {
	options
	producer rocketmq.Producer
	selector *bySequence
	failed   int
	lock     sync.Mutex
}

func produce(o options) {
	selector := &bySequence{}
	p, err := rocketmq.NewProducer(append(producing(o), producer.WithQueueSelector(selector))...)
	if err != nil {
		log.Fatal(err)
	}
	if err := p.Start(); err != nil {
		log.Fatal(err)
	}
	s := &sender{options: o, producer: p, selector: selector}
	modes := strings.Split(o.modes, ",")
	for i, mode := range modes {
		s.send(mode, o.count*i/len(modes), o.count*(i+1)/len(modes))
	}
	say(map[string]any{"done": o.count, "failed": s.failed})
	if o.trace == "yes" { // the client does not say when its traces are sent
		wait(o, nil)
	}
	if err := p.Shutdown(); err != nil {
		log.Fatal(err)
	}
}

func producing(o options) []producer.Option {
	wanted := []producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{o.namesrv})),
		producer.WithGroupName(o.group), producer.WithRetry(0),
	}
	if o.accessKey != "" {
		wanted = append(wanted, producer.WithCredentials(credentials(o)))
	}
	if o.trace == "yes" {
		wanted = append(wanted, producer.WithTrace(tracing(o)))
	}
	return wanted
}

func (s *sender) send(mode string, from, to int) {
	switch mode {
	case "sync":
		for i := from; i < to; i++ {
			s.sync(mode, i, i, s.message(i))
			time.Sleep(time.Duration(s.intervalMs) * time.Millisecond)
		}
	case "batch":
		for i := from; i < to; i += batchSize {
			s.batch(i, min(i+batchSize, to))
		}
	case "async":
		s.async(from, to)
	case "oneway":
		for i := from; i < to; i++ {
			s.insist(i, i, func() error {
				return s.producer.SendOneWay(context.Background(), s.message(i))
			})
			say(map[string]any{"sent": i, "mode": mode})
		}
	default:
		log.Fatalf("mode %s", mode)
	}
}

func (s *sender) sync(mode string, sequence, queue int, messages ...*primitive.Message) {
	s.insist(sequence, queue, func() error {
		result, err := s.producer.SendSync(context.Background(), messages...)
		if err == nil && result.Status != primitive.SendOK {
			err = fmt.Errorf("send status %d", result.Status)
		}
		if err == nil {
			acknowledged(mode, sequence, len(messages), result)
		}
		return err
	})
}

func (s *sender) batch(from, to int) {
	var messages []*primitive.Message
	for i := from; i < to; i++ {
		messages = append(messages, s.message(i))
	}
	s.sync("batch", from, from/batchSize, messages...)
}

func (s *sender) async(from, to int) {
	window := make(chan struct{}, asyncWindow)
	for i := from; i < to; i++ {
		window <- struct{}{}
		s.selector.set(i)
		err := s.producer.SendAsync(context.Background(),
			func(_ context.Context, result *primitive.SendResult, err error) {
				if err == nil && result.Status != primitive.SendOK {
					err = fmt.Errorf("send status %d", result.Status)
				}
				if err == nil {
					acknowledged("async", i, 1, result)
				} else {
					s.fail(i, err)
				}
				<-window
			}, s.message(i))
		if err != nil {
			s.fail(i, err)
			<-window
		}
	}
	for i := 0; i < asyncWindow; i++ {
		window <- struct{}{}
	}
}

// insist tries until it succeeds or --retry-seconds have passed: a killed broker comes back.
func (s *sender) insist(sequence, queue int, attempt func() error) {
	deadline := time.Now().Add(time.Duration(s.retrySeconds) * time.Second)
	for {
		s.selector.set(queue)
		err := attempt()
		if err == nil {
			return
		}
		s.fail(sequence, err)
		if !time.Now().Before(deadline) {
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func (s *sender) fail(sequence int, err error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.failed++
	say(map[string]any{"fail": sequence, "error": err.Error()})
}

func acknowledged(mode string, first, count int, result *primitive.SendResult) {
	offsetIDs := strings.Split(result.OffsetMsgID, ",")
	for i := 0; i < count; i++ {
		id := result.MsgID
		if id == "" { // a batch has no unique id in this client
			id = offsetIDs[i]
		}
		say(map[string]any{"ack": first + i, "mode": mode, "id": id, "offsetId": offsetIDs[i],
			"queue": result.MessageQueue.QueueId, "offset": result.QueueOffset + int64(i)})
	}
}

func (o options) message(sequence int) *primitive.Message {
	body := fmt.Sprintf("%s-%s-%d", o.prefix, o.producer, sequence)
	message := primitive.NewMessage(o.topic, []byte(body))
	if o.tag != "" {
		message.WithTag(o.tag)
	}
	if o.keys == "yes" {
		message.WithKeys([]string{body})
	}
	if o.property != "" {
		message.WithProperty(o.property, strconv.Itoa(sequence))
	}
	if o.delayLevel > 0 {
		message.WithDelayTimeLevel(o.delayLevel)
	}
	return message
}
