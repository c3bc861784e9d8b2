"""A training that goes on with another batch size, or has nothing left to do: say so."""

from __future__ import annotations

from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, Runner

from mmlape.registry import HOOKS

__all__ = ['ResumeCheckHook']

_KEY = 'images_per_step'


@HOOKS.register_module()
class ResumeCheckHook(Hook):
    """Write into each checkpoint how many images a step had, and warn when a resumed run has another number.

    A run that is resumed after its end says so, too.

    MMEngine restores the learning rate and the state of the schedules with the checkpoint, so after a change of the
    number of GPUs neither fits any more, and ``auto_scale_lr`` has no effect; it does not notice. The training tool of
    mmlape adds this hook to every run. In any config::

        custom_hooks = [dict(type='mmlape.ResumeCheckHook')]
    """

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Record processes, images per process and accumulated steps in the checkpoint's ``meta``."""
        checkpoint.setdefault('meta', {})[_KEY] = _images_per_step(runner)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Compare with the record, if this is a resumption and there is one."""
        then, now = (checkpoint.get('meta') or {}).get(_KEY), _images_per_step(runner)
        if not runner._resume or then is None or then == now:
            return
        text = f'resumed with {_say(now)}; the checkpoint was trained with {_say(then)}.'
        if _total(then) == _total(now):
            runner.logger.info(f'{text} The product is the same, so rates and schedules fit.')
            return
        text += (
            ' The learning rate and the schedules are those of the checkpoint (--auto-scale-lr does not '
            'reach them) and were made for the other number.'
        )
        if isinstance(runner.train_loop, EpochBasedTrainLoop):
            text += ' Epochs now have another number of iterations, on which warm-up and iterations logged depend.'
        share, rest = divmod(_total(then), now['processes'] * now['accumulated'])
        if not rest:
            text += f' To train as before: --cfg-options train_dataloader.batch_size={share}'
        runner.logger.warning(text)

    def before_train(self, runner: Runner) -> None:
        """Say that there is nothing left to train."""
        loop = runner.train_loop
        done, end, unit = loop.iter, loop.max_iters, 'iterations'
        if isinstance(loop, EpochBasedTrainLoop):
            # A checkpoint of the last iteration was written before its epoch was counted.
            end, unit = loop.max_epochs, 'epochs'
            done = end if done >= loop.max_iters else loop.epoch
        if runner._resume and done >= end:
            runner.logger.warning(
                f'this training is finished ({done} of {end} {unit}): nothing is left to train. To go on, raise '
                f'train_cfg.max_{unit.replace("iterations", "iters")}; to train anew, take another work dir'
            )


def _images_per_step(runner: Runner) -> dict[str, int]:
    loader = runner.cfg.get('train_dataloader') or {}
    batch = loader.get('batch_size') or (loader.get('batch_sampler') or {}).get('batch_size') or 0
    optim = runner.cfg.get('optim_wrapper') or {}
    return dict(
        processes=runner.world_size, images=batch, accumulated=optim.get('accumulative_counts', 1)
    )


def _total(record: dict[str, int]) -> int:
    return record['processes'] * record['images'] * record['accumulated']


def _say(record: dict[str, int]) -> str:
    accumulated = f' x {record["accumulated"]} accumulated' if record['accumulated'] != 1 else ''
    return f'{record["processes"]} processes x {record["images"]} images{accumulated} = {_total(record)} per step'
