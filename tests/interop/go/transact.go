package main

import (
	"context"
	"log"
	"strconv"
	"strings"
	"sync"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// endings is what becomes of message n, by n mod 4: at once, and when the broker asks.
var endings = [4]struct {
	first, asked primitive.LocalTransactionState
}{
	{primitive.CommitMessageState, primitive.UnknowState},
	{primitive.RollbackMessageState, primitive.UnknowState},
	{primitive.UnknowState, primitive.CommitMessageState},
	{primitive.UnknowState, primitive.RollbackMessageState},
}

// decider decides the transactions, and counts those of which it was asked.
type decider struct {
	lock      sync.Mutex
	asked     map[int]bool
	undecided int
	enough    chan struct{}
}

func (d *decider) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	sequence := number(m.Body)
	say(map[string]any{"prepared": sequence, "id": m.TransactionId})
	return endings[sequence%4].first
}

func (d *decider) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	sequence := number(m.Body)
	say(map[string]any{"asked": sequence, "id": m.TransactionId})
	d.lock.Lock()
	defer d.lock.Unlock()
	if !d.asked[sequence] {
		if d.asked[sequence] = true; len(d.asked) == d.undecided {
			close(d.enough)
		}
	}
	return endings[sequence%4].asked
}

func number(body []byte) int {
	text := string(body)
	sequence, err := strconv.Atoi(text[strings.LastIndex(text, "-")+1:])
	if err != nil {
		log.Fatal(err)
	}
	return sequence
}

// transact sends --count messages in transactions, and ends when it was asked of all undecided ones.
func transact(o options) {
	d := &decider{
		asked: map[int]bool{}, undecided: o.count/4*2 + max(o.count%4-2, 0), enough: make(chan struct{})}
	p, err := rocketmq.NewTransactionProducer(d, producing(o)...)
	if err != nil {
		log.Fatal(err)
	}
	if err := p.Start(); err != nil {
		log.Fatal(err)
	}
	failed := 0
	for i := 0; i < o.count; i++ {
		result, err := p.SendMessageInTransaction(context.Background(), o.message(i))
		if err != nil {
			failed++
			say(map[string]any{"fail": i, "error": err.Error()})
			continue
		}
		say(map[string]any{"ack": i, "mode": "transaction", "id": result.MsgID})
	}
	wait(o, d.enough)
	say(map[string]any{"done": o.count, "failed": failed})
	if err := p.Shutdown(); err != nil {
		log.Fatal(err)
	}
}
